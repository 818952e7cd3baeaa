"""The row of the table of stages: when a run is evaluated before its end, what that makes, costs and measures.

Found by name. The verb is interim.py.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from oapl_core.planning.room import Need, answered, answers, heldout_answers, problems_of
from oapl_core.planning.stage_row import Stage, start_of, unfinished_answers
from oapl_core.run_folder.measurement import Measurement
from oapl_core.run_folder.run import EVALUATION_DIR, Run
from oapl_core.settings.experiment import Experiment


def results(run: Run, number: int) -> Path:
    """Return the file of what was measured after round ``number``."""
    return run.evaluations(number).with_suffix(".json")


def first_of(config: Experiment) -> int:
    """Return the round of the first evaluation, with which the base model answers, too."""
    return config.evaluated_rounds[0]


def _after(config: Experiment) -> tuple[int, ...]:
    # the last is the end of the run, which has a stage of its own
    return config.evaluated_rounds[:-1]


def room(run: Run, number: int) -> Need | None:
    """Estimate the answers of the evaluation after round ``number``; None where there is none."""
    settings = run.config.evaluation
    if number not in _after(run.config):
        return None
    asked = problems_of(run, "heldout")
    heldout = min(asked, settings.heldout_problems or asked) * heldout_answers(settings)
    checkpoints = 2 if number == first_of(run.config) else 1
    rows = heldout * checkpoints + problems_of(run, "validation") * settings.validation_samples
    what = f"round {number}: {rows:,} answers of the evaluation need"
    return answers(run, number, what, max(0, rows - answered(run, number)))


def _answers(config: Experiment, problems: Mapping[str, int]) -> int:
    # held-out answers are used again at the end
    return len(_after(config)) * problems["validation"] * config.evaluation.validation_samples


def _measured(run: Run) -> Iterator[Measurement]:
    made = run.ledger.artifacts()
    heldout = "heldout_subset" if run.config.evaluation.heldout_problems else "heldout"
    for number in _after(run.config):
        entry = made.get(run.name(results(run, number)))
        details = entry.details if entry else {}
        for split in ("validation", "heldout"):
            axis = heldout if split == "heldout" else f"{split}_by_round"
            decides = split == details.get("deciding", {}).get("split")
            for checkpoint, measures in details.get(split, {}).items():
                trained = 0 if checkpoint == "base" else number + 1
                yield Measurement(axis, trained, number, checkpoint, split, measures, decides and trained > 0)


INTERIM = Stage(
    "interim-evaluation",
    "evaluation.interim",
    (f"{EVALUATION_DIR}/",),
    of_round=True,
    reads=lambda run, number: start_of(run, number + 1),
    decided_by=(
        *("evaluation", "seed", "verifier", "reward", "environment"),
        *("engine.dtype", "engine.options", "sampling.stop", "sampling.max_tokens"),
    ),
    scratch=unfinished_answers,
    retries=2,
    needs=("gpu", "sandbox"),
    room="interim-evaluation",
    measured=_measured,
    after=_after,
    answers=_answers,
    place="oapl_extras.interim.interim",
)
