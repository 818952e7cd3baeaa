"""Measures the trained arms of a comparison: ``python -m oapl_extras.compare.measuring COMPARISON_DIR``.

Reads compare.json and the arms' run folders. Writes each arm's evaluation into its own folder, exactly as
``evaluation.evaluate`` would, so that an arm is a run as any other. One engine and one verifier serve all. Answers of a
checkpoint that arms share (the base model) are sampled once for each seed. The other arms of that seed get hard links
and the same lines of the ledger.
"""

import os
import time
from collections.abc import Iterable
from dataclasses import replace

from oapl_core.errors import Interrupted, OaplError
from oapl_core.evaluation.run_end import evaluate_run
from oapl_core.evaluation.workers import Start, VerifierFactory, Workers
from oapl_core.planning.plan import conclusion
from oapl_core.progress import say
from oapl_core.rollouts.engine import SamplingEngine
from oapl_core.run_folder.ledger import StageEntry
from oapl_core.run_folder.run import Run
from oapl_core.stage import run_verb
from oapl_core.verdicts.verifier import Verifier
from oapl_extras.compare.folder import Arm, Comparison


def evaluate_arms(comparison: Comparison, start: Start = SamplingEngine, verifier: VerifierFactory = Verifier) -> None:
    """Evaluate every trained arm, or what of it is missing.

    Args:
        comparison: its folder.
        start: what to sample with; tests give a made-up sampler.
        verifier: what to judge with.

    Raises:
        OaplError: an arm could not be measured; the others were.
    """
    arms = [arm for arm in comparison.arms if arm.is_trained]
    failed: list[tuple[Arm, OaplError]] = []
    with Workers(start, verifier) as workers:
        for number, arm in enumerate(arms, 1):
            if arm.is_measured:
                continue
            say(f"{arm.name}: arm {number} of {len(arms)}")
            try:
                _evaluate(arm, [other for other in arms if other.seed == arm.seed], workers)
            except Interrupted:  # a person or a scheduler wants all of it to end
                raise
            except OaplError as error:
                say(f"{arm.name}: {error}")
                failed.append((arm, error))
                workers.end()  # whatever they were doing for this arm; the next one gets new ones
    if failed:
        first, why = failed[0]
        raise type(why)(f"{first.name}: could not be measured ({why})")


def _evaluate(arm: Arm, same_seed: Iterable[Arm], workers: Workers) -> None:
    run, began = arm.run(), time.monotonic()
    for other in same_seed:
        if other is not arm and other.is_measured:
            _adopt(run, other.run())
            break
    evaluate_run(run, workers)
    # as if a process of its own had done it: so the run's plan knows that the step is finished
    run.ledger.append(StageEntry(conclusion(arm.config)[0].label, round(time.monotonic() - began, 3), 0))


def _adopt(run: Run, other: Run) -> None:
    """Take over the answers of checkpoints that both runs share; ``evaluate`` sees whether they are what it would ask.

    Raises:
        OSError: the file system has no hard links.
    """
    # its own epochs have names that those of other arms have too; their answers are other ones
    last = f"round_{len(run.config.rounds) - 1}_epoch_"
    mine, theirs = f"{run.name(run.evaluations())}/", f"{other.name(other.evaluations())}/"
    done = run.ledger.artifacts()
    for name, entry in other.ledger.artifacts().items():
        file = name.removeprefix(theirs)
        if not name.startswith(theirs) or file.startswith(last) or mine + file in done:
            continue
        target = run.root / (mine + file)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # what a crash left between the link and its line
        os.link(other.root / name, target)
        # verdicts are made from the answers beside them, under this run's name for those
        inputs = {mine + n.removeprefix(theirs) if n.startswith(theirs) else n: d for n, d in entry.inputs.items()}
        run.ledger.append(replace(entry, artifact=mine + file, inputs=inputs, seconds=0.0))


if __name__ == "__main__":
    raise SystemExit(run_verb(evaluate_arms, has_round=False, opens=Comparison.open))
