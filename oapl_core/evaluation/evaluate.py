"""``python -m oapl_core.evaluation.evaluate RUN_DIR``: the checkpoints of a run answer its problems.

Writes rows, measures and a card; `run_end.py` says who answers what. `oapl evaluate` asks any checkpoints, in a folder
of its own, by the same means (`folders/evaluate.py`).
"""

import sys
from collections.abc import Sequence
from functools import partial

from oapl_core.evaluation.run_end import evaluate_run
from oapl_core.evaluation.workers import REPLICA, Replica, Start, VerifierFactory, Workers
from oapl_core.rollouts.engine import SamplingEngine
from oapl_core.run_folder.run import Run
from oapl_core.stage import run_verb
from oapl_core.verdicts.verifier import Verifier

_VERB = "evaluation.evaluate"
_COMMAND = (sys.executable, "-m", f"oapl_core.{_VERB}")


def evaluate(
    run: Run,
    start: Start | None = None,
    verifier: VerifierFactory = Verifier,
    replica: int = 0,
    command: Sequence[str] = _COMMAND,
    share: int = 1,
) -> None:
    """Evaluate a run; what is finished is kept.

    Args:
        run: whose checkpoints answer.
        start: what to sample with, unset the real engine; tests give a made-up sampler.
        verifier: what to judge with.
        replica: which of ``engine.replicas`` this process is; 0 starts the others and writes the results.
        command: what starts another replica, without its arguments.
        share: which of the machines of `fleet.evaluation` this is, counted from 1; only the first writes the results.

    Raises:
        DataError: a checkpoint cannot be used, or is not what was recorded.
        StageFailed: too many answers could not be judged.
    """
    log = run.log(_VERB if share == 1 else f"{_VERB} share {share}")
    mine = Replica(replica, (*command, str(run.root), "--share", str(share)), log, share)
    with Workers(start or partial(SamplingEngine, replica=replica), verifier, mine) as workers:
        evaluate_run(run, workers)
        workers.wait()


if __name__ == "__main__":
    share = {"type": int, "default": 1, "help": "which of several machines this is, counted from 1"}
    raise SystemExit(run_verb(evaluate, has_round=False, options={"replica": REPLICA, "share": share}))
