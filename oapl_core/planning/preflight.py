"""Before a stage starts: is what it reads still there, and is there room on the disk for what it writes?

Reads the ledger and the disk's free space; writes nothing. How much room a stage needs is in the table of stages
(room.py). Where only the most that the settings allow is known, too little room for that is said but stops nothing.
Training estimates for itself (training/saving/disk.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core import plugins
from oapl_core.errors import ConfigError, DataError
from oapl_core.planning.plan import steps
from oapl_core.planning.stages import BY_VERB, EVALUATION, VERIFICATION
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment import Experiment
from oapl_core.tables import PROBLEMS, read_table, readable
from oapl_core.toolchain_of import ASKED_BY, toolchains_of

if TYPE_CHECKING:
    from oapl_core.planning.room import Need
    from oapl_core.toolchain import Toolchain


def before_stage(run: Run, verb: str, number: int | None) -> None:
    """Check what every stage process needs first; ``number`` is its round.

    Raises:
        ConfigError: the function that says what a verdict earns cannot be imported, or a checker may not be used.
        DataError: what the stage reads was removed on purpose; says how to make it again.
        SandboxError: answers are to be judged whose language has no compiler or interpreter here.
        StageFailed: the disk has less room than the stage needs.
    """
    refuse_removed(run, verb, number)
    judges = verb in BY_VERB and "sandbox" in BY_VERB[verb].needs
    if judges:
        refuse_missing_tools(run)
        for checker in asked_for(run.problems, "checker"):
            plugins.resolve("checker", checker)
    # a minute before the first verdict, not after the first part
    # evaluations judge by the run's own settings, also those after a round
    has_own = verb == VERIFICATION.verb and number is not None and number < len(run.config.rounds)
    reward = (run.config.of_round(number or 0) if has_own else run.config).reward
    if reward and reward.place and judges:
        plugins.resolve("setting", "reward.function")(reward.place, "reward.function")
    need = estimate(run, verb, number)
    if need:
        need.compare(run, shutil.disk_usage(run.root).free)


def refuse_removed(run: Run, verb: str, number: int | None) -> None:
    """Refuse a stage whose input was removed, as ``before_stage`` does."""
    removed = run.ledger.removals()
    lacking = [name for name in removed if name.startswith(_reads(run, verb, number))]
    if lacking:
        maker = next(step for step in steps(run.config) if lacking[0].startswith(step.outputs))
        again = f"--redo {maker.word}" + ("" if maker.round is None else f" --round {maker.round}")
        raise DataError(
            f"{run.root}: {verb} reads {lacking[0]}, which was removed ({removed[lacking[0]].rule}); "
            f"`oapl run {run.root} {again}` makes it again"
        )


def refuse_missing_tools(run: Run) -> None:
    """Ask the tools of every toolchain of the run's problems for their version.

    Raises:
        SandboxError: one is missing or broken; says what to install.
    """
    for toolchain in toolchains_in(run.problems):
        toolchain.found_version()


def refuse_unjudged(config: Experiment, problems: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Pass the problems on, each in its turn.

    Raises:
        ConfigError: one is open, has no gold and no tests, and nothing says what an answer to it earns.
    """
    reward = config.reward
    by_reward = set(reward.weights) - {"verdict", "tests", "f1"} if reward else set[str]()
    is_judged = config.environment is not None or bool(by_reward)
    for problem in problems:
        if problem["kind"] == "open" and not is_judged:
            raise ConfigError(
                f"problem {problem['problem_id']!r} has no gold and no tests: give [reward] a function or a judge, or "
                'name the column that has the gold, for example problems.columns = {answer = "final"}'
            )
        yield problem
        del problem  # before the next one is made: each may have 189 MB of tests


def toolchains_in(problems: Path) -> list[Toolchain]:
    """Return the toolchains that ``problems`` (tables.PROBLEMS) ask for, beside Python, by name."""
    return toolchains_of({ASKED_BY: name} for name in asked_for(problems, ASKED_BY))


def asked_for(problems: Path, column: str) -> list[str]:
    """List the names in a column of ``problems`` (tables.PROBLEMS), each once."""
    if not problems.is_file():
        return []
    with readable(problems):
        return sorted(filter(None, read_table(problems, PROBLEMS, [column])[column].unique().to_pylist()))


def _reads(run: Run, verb: str, number: int | None) -> tuple[str, ...]:
    """Return beginnings of the names of artifacts that a stage cannot do without and that rules may remove."""
    last = len(run.config.rounds) - 1
    number = last if verb == EVALUATION.verb else number
    stage = BY_VERB.get(verb)
    if stage is None or number is None or not 0 <= number <= last:
        return ()
    return tuple(map(run.name, stage.reads(run, number)))


def estimate(run: Run, verb: str, number: int | None) -> Need | None:
    """Estimate what the rest of a stage writes; None where that is little, or the stage says so itself."""
    stage, last = BY_VERB.get(verb), len(run.config.rounds) - 1
    if not (stage and stage.room) or (stage.of_round and (number is None or not 0 <= number <= last)):
        return None
    need: Need | None = plugins.resolve("room", stage.room)(run, last if number is None else number)
    return need
