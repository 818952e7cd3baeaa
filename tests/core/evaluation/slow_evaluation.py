"""``evaluate`` with a made-up sampler that takes its time: ``python -m tests.core.evaluation.slow_evaluation RUN``.

With ``--round N`` it is ``interim``.

The judge is made up, too. Each answer takes OAPL_TEST_ANSWER_S seconds (tests/core/rollouts/slow_sampling.py).
"""

import sys

from oapl_core.evaluation.evaluate import evaluate
from oapl_core.run_folder.run import Run
from oapl_core.stage import run_verb
from oapl_extras.interim.interim import interim
from tests.core.evaluation.made_up_verifier import MadeUpVerifier
from tests.core.rollouts.slow_sampling import Slow

COMMAND = (sys.executable, "-m", "tests.core.evaluation.slow_evaluation")
JUDGE = MadeUpVerifier(lambda weights: 0.2 + 0.6 * (int(weights, 16) % 7) / 7)


def slowly(run: Run) -> None:
    evaluate(run, Slow, JUDGE)


def slowly_after(run: Run, number: int) -> None:
    interim(run, number, Slow, JUDGE)


if __name__ == "__main__":
    has_round = "--round" in sys.argv
    raise SystemExit(run_verb(slowly_after if has_round else slowly, has_round))
