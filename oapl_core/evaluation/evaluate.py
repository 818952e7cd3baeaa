"""``python -m oapl_core.evaluation.evaluate RUN_DIR``: the checkpoints of a run answer its problems.

Writes rows, measures and a card; `run_end.py` says who answers what. `oapl evaluate` asks any checkpoints, in a folder
of its own, by the same means (`folders/evaluate.py`).
"""

from typing import Unpack

from oapl_core.evaluation.run_end import evaluate_run
from oapl_core.evaluation.workers import OPTIONS, Place, Start, VerifierFactory, workers_of
from oapl_core.planning.stages import EVALUATION
from oapl_core.run_folder.run import Run
from oapl_core.stage import run_verb
from oapl_core.verdicts.verifier import Verifier


def evaluate(
    run: Run, start: Start | None = None, verifier: VerifierFactory = Verifier, **place: Unpack[Place]
) -> None:
    """Evaluate a run; what is finished is kept.

    Args:
        run: whose checkpoints answer.
        start: what to sample with, unset the real engine; tests give a made-up sampler.
        verifier: what to judge with.
        place: which of the evaluation's processes this is.

    Raises:
        DataError: a checkpoint cannot be used, or is not what was recorded.
        StageFailed: too many answers could not be judged.
    """
    with workers_of(run, EVALUATION.verb, (), start, verifier, **place) as workers:
        evaluate_run(run, workers)
        workers.wait()


if __name__ == "__main__":
    raise SystemExit(run_verb(evaluate, has_round=False, options=OPTIONS))
