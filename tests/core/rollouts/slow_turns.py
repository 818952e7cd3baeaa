"""``generate`` with a speaking sampler that takes its time: ``python -m tests.core.rollouts.slow_turns RUN --round 0``.

Each turn takes OAPL_TEST_ANSWER_S seconds; the first two run a program, the third says what came of it.
"""

import os
import random
import re
import time
from functools import partial

from oapl_core.rollouts.generate import generate
from oapl_core.rollouts.requests import Request, SampledAnswer
from oapl_core.run_folder.run import Run
from oapl_core.stage import run_verb
from tests.speaking_sampler import SpeakingSampler

COMMAND = ("python", "-m", "tests.core.rollouts.slow_turns")


def says(conversation: str, draw: random.Random) -> str:
    asked = re.findall(r"(\d+ \+ \d+) =", conversation)[0]
    said = re.findall(r"<\|im_start\|>tool\n(.*?)<\|im_end\|>", conversation, re.DOTALL)
    if not said:
        return f"```python\nimport time; time.sleep(0.1)\nx = {asked} + {draw.randrange(9)}\n```"
    return (
        "```python\nimport random; x += random.randrange(1000); x\n```" if len(said) == 1 else f"\\boxed{{{said[-1]}}}"
    )


class Slow(SpeakingSampler):
    def _answer(self, request: Request, with_logprobs: bool) -> SampledAnswer:
        time.sleep(float(os.environ.get("OAPL_TEST_ANSWER_S", "0.01")))
        return super()._answer(request, with_logprobs)


def slowly(run: Run, number: int) -> None:
    generate(run, number, partial(Slow, says))


if __name__ == "__main__":
    raise SystemExit(run_verb(slowly, has_round=True))
