"""One round: sample with the newest checkpoint and verify what is sampled meanwhile, verify the rest, filter, train.

Reads the checkpoint of the round before; writes ``round_NN/``.
"""

from contextlib import AbstractContextManager
from pathlib import Path

from prefect import flow

from oapl_core.artifacts import Run
from oapl_core.plan import Step, finished, round_steps, verification_beside_sampling
from tasks.cluster import beside_on_ray
from tasks.stage import beside, stage_task


def run_missing(run_dir: Path, steps: tuple[Step, ...]) -> None:
    """Run those of ``steps`` that are not finished, in order; one that comes out as before reopens nothing after it."""
    for step in steps:
        if step not in finished(Run.open(run_dir)):
            stage_task(step)(run_dir, step)


@flow(name="oapl-round", flow_run_name="round-{number}", validate_parameters=False)
def oapl_round(run_dir: Path, number: int) -> None:
    """Bring round ``number`` (counted from 0) of ``run_dir`` to its end; finished steps are not redone."""
    sampling, *later = round_steps(number)
    if sampling not in finished(Run.open(run_dir)):
        with verifying(run_dir, number):
            run_missing(run_dir, (sampling,))
    run_missing(run_dir, tuple(later))


def verifying(run_dir: Path, number: int) -> AbstractContextManager[None]:
    """Verification beside sampling: on a Ray cluster when the experiment names one, else on this machine."""
    settings = Run.open(run_dir).config.verifier
    steps = verification_beside_sampling(number, settings.shares)
    if settings.ray is None:
        return beside(run_dir, steps[0])
    return beside_on_ray(run_dir, steps, settings.ray, settings.workers or 1)
