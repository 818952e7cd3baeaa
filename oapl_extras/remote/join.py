"""``python -m oapl_extras.remote.join FOLDER --round N``: samples parts of a run on another machine.

Reads what ``joining.py`` fetched into FOLDER (run.json, inputs/, joined.json) and the round's queue in the mirror;
writes parts below FOLDER and sends them. Ends when every part of the round is finished, by whomever, or wanted no more.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from oapl_core.errors import ConfigError
from oapl_core.progress import say
from oapl_core.rollouts.drawing import choose_problems
from oapl_core.rollouts.generate import Work, read_prompts, settings_of
from oapl_core.rollouts.parts import Provenance
from oapl_core.rollouts.requests import Sampler
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment import EngineConfig
from oapl_core.stage import run_verb
from oapl_extras.remote.joining import VERB, Joined
from oapl_extras.remote.mirror_parts import MirrorParts
from oapl_extras.remote.object_store import ObjectStore
from oapl_extras.remote.part_queue import LEASE_S, Closed, PartQueue

_COMMAND = (sys.executable, "-m", VERB)


def join(
    run: Run,
    number: int,
    start: Callable[[Path, EngineConfig], Sampler] | None = None,
    replica: int = 0,
    command: Sequence[str] = _COMMAND,
    lease_s: float = LEASE_S,
) -> None:
    """Sample parts of round ``number``; arguments as ``generate`` and ``PartQueue`` have them.

    Raises:
        ConfigError: a setting was changed that answers depend on.
        DataError: the checkpoint is not the one that the round asks for.
        Unreachable: the store has been away for minutes.
    """
    joined = Joined.read(run.root)
    opened = joined.opened
    prompts = read_prompts(run, "train")
    chosen = choose_problems(run, number, list(prompts))
    if settings_of(run, number, opened.settings["problems_per_part"], chosen) != opened.settings:
        raise ConfigError(
            f"{run.root}: these settings would make other answers than the run's; a machine that joins may change how "
            "fast its engine is (replicas, max_num_seqs, tensor_parallel_size, ...), nothing else"
        )
    policy = joined.policy(run.root)
    provenance = Provenance(opened.policy_hash, opened.inputs, opened.settings)
    work = Work(run, number, prompts, chosen.problems, policy, provenance)
    # Settings and weights were compared with the round's; from here on this is sampling as anywhere else.
    try:
        queue = PartQueue(ObjectStore(joined.url), opened, joined.machine, lease_s)
        with MirrorParts(work.wanted, joined=queue) as parts:
            work.finish([*command, str(run.root)], run.log(f"{VERB} round {number}"), parts, start, replica)
    except Closed as over:
        say(str(over))


if __name__ == "__main__":
    replica = {"type": int, "default": 0, "help": "which replica of this machine this is; 0 starts the rest"}
    raise SystemExit(run_verb(join, has_round=True, options={"replica": replica}))
