"""What the seeds pin down: ``python -m bench.seeds`` samples the same requests with other engine settings.

Prints one JSON line: for each setting the share of answers whose tokens equal those of the first setting, the largest
difference of a log-prob over equal answers (nats), and the tokens sampled. Settings: requests decoded at once, prefix
cache block (through the order of the requests), other requests beside them, and the number of threads.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from oapl_core.rollouts.engine import SamplingEngine
from oapl_core.rollouts.requests import Request, SampledAnswer
from oapl_core.settings.experiment import EngineConfig
from tests.tiny_model import write_tiny_model

SETTINGS: dict[str, dict[str, Any]] = {
    "256 at once": {},
    "256 at once, again": {},
    "64 at once": {"max_num_seqs": 64},
    "16 at once": {"max_num_seqs": 16},
    "1 at once": {"max_num_seqs": 1},
    "another order": {"shuffled": True},
    "one core": {"cores": 1},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, 16 at once": {"dtype": "bfloat16", "max_num_seqs": 16},
}


def requests(count: int) -> list[Request]:
    draw = random.Random(0)
    prompts = [[draw.randrange(3, 290) for _ in range(draw.randint(15, 110))] for _ in range(count // 8)]
    return [Request(f"{p}/{g}", prompts[p], 1000 * p + g, 100) for p in range(len(prompts)) for g in range(8)]


def sample(model: Path, name: str, count: int) -> dict[str, SampledAnswer]:
    settings = dict(SETTINGS[name])
    asked = requests(count)
    if settings.pop("shuffled", False):
        random.Random(1).shuffle(asked)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: settings.pop("cores", None)])
    config = EngineConfig(max_model_len=256, kv_cache_gib=0.5).model_copy(update=settings)
    with SamplingEngine(model, config) as engine:
        return {completion.request.key: completion for completion in engine.sample(asked)}


def main() -> None:
    """Each setting in a process of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=800)
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "SETTING"))
    options = parser.parse_args()
    if options.one:
        found = sample(Path(options.one[0]), options.one[1], options.requests)
        print(json.dumps({key: [answer.response_ids, answer.logprobs] for key, answer in found.items()}))
        return
    with tempfile.TemporaryDirectory() as name:
        model = write_tiny_model(Path(name) / "model", hidden_size=128, layers=3, vocabulary=832, sharpness=4)
        command = [sys.executable, "-m", "bench.seeds", "--requests", str(options.requests), "--one", str(model)]
        answers = {}
        for setting in SETTINGS:
            result = subprocess.run([*command, setting], check=True, capture_output=True, text=True)
            answers[setting] = json.loads(result.stdout.splitlines()[-1])
    print(json.dumps({setting: compared(answers["256 at once"], other) for setting, other in answers.items()}))


def compared(first: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    equal = [key for key in first if first[key][0] == other[key][0]]
    pairs = ((a, b) for key in equal for a, b in zip(first[key][1], other[key][1], strict=True))
    return {
        "equal": len(equal) / len(first),
        "largest_difference": max((abs(a - b) for a, b in pairs), default=0.0),
        "tokens": sum(len(answer[0]) for answer in other.values()),
    }


if __name__ == "__main__":
    main()
