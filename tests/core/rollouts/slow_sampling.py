"""``generate`` with a made-up sampler that takes its time: ``python -m tests.core.rollouts.slow_sampling RUN ...``.

Takes the arguments of the real command and starts its replicas as itself. Each answer takes OAPL_TEST_ANSWER_S seconds.
"""

import os
import sys
import time
from functools import partial
from typing import Any

from oapl_core.rollouts.generate import generate
from oapl_core.rollouts.requests import Request, SampledAnswer
from oapl_core.run_folder.run import Run
from oapl_core.stage import run_verb
from oapl_extras.remote.mirror_parts import MirrorParts
from tests.sampling_run import MadeUpSampler

COMMAND = (sys.executable, "-m", "tests.core.rollouts.slow_sampling")


class Slow(MadeUpSampler):
    def _answer(self, request: Request, with_logprobs: bool) -> SampledAnswer:
        time.sleep(float(os.environ.get("OAPL_TEST_ANSWER_S", "0.01")))
        print(f"answered {request.key}", flush=True)
        return super()._answer(request, with_logprobs)


def slowly(run: Run, number: int, replica: int) -> None:
    lease_s = float(os.environ.get("OAPL_TEST_LEASE_S", "60"))
    store = partial(MirrorParts, lease_s=lease_s) if run.config.fleet.through_mirror else None
    generate(run, number, Slow, replica, COMMAND, store=store)


if __name__ == "__main__":
    options: dict[str, dict[str, Any]] = {"replica": {"type": int, "default": 0}}
    raise SystemExit(run_verb(slowly, has_round=True, options=options))
