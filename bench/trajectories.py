"""How fast trajectories are sampled: ``python -m bench.trajectories --to docs/benchmarks/data/trajectories.json``.

One engine, a random model of the demo's size (``--hidden-size`` and ``--layers`` make another), 256 sequences at once.
512 trajectories of up to four turns, each turn ended by a letter; an environment answers the first three with 12 tokens
or so.

    no tool       the environment answers at once
    tool 50 ms    the same, each answer takes 50 ms; 512 trajectories in flight (the default), and 256
    single turns  the turns of `no tool` as independent requests: the same prompts, seeds and sampled tokens

Rates are sampled tokens a second, of the median of the repetitions, which go through the arms in turn.
"""

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from oapl_core.environments.stepping import Steps
from oapl_core.environments.turn_sampler import TurnSampler
from oapl_core.environments.wording import Wording
from oapl_core.model_files.model_folder import end_token_ids, load_tokenizer
from oapl_core.rollouts.engine import SamplingEngine
from oapl_core.rollouts.requests import Request, SampledAnswer
from oapl_core.settings.environment import EnvironmentConfig
from oapl_core.settings.experiment import EngineConfig
from tests.played_environments import Patient
from tests.tiny_model import write_tiny_model

AT_ONCE, TOOL_S = 256, 0.05


class Recording:
    """The engine, and every request that it was asked."""

    def __init__(self, engine: SamplingEngine) -> None:
        self._engine, self.asked = engine, list[Request]()
        self.name, self.logprobs_mode, self.dtype = engine.name, engine.logprobs_mode, engine.dtype
        self.startup_s = engine.startup_s

    def __enter__(self) -> "Recording":
        return self

    def __exit__(self, *_: object) -> None: ...

    def load(self, model_dir: Path) -> None:
        self._engine.load(model_dir)

    def sample(self, requests: Iterable[Request | None], with_logprobs: bool = True) -> Iterator[SampledAnswer]:
        return self._engine.sample(self._seen(requests), with_logprobs)

    def _seen(self, requests: Iterable[Request | None]) -> Iterator[Request | None]:
        for request in requests:
            if request is not None:
                self.asked.append(request)
            yield request


def requests(trajectories: int) -> list[Request]:
    draw = random.Random(0)
    prompts = [[draw.randrange(3, 290) for _ in range(draw.randint(40, 80))] for _ in range(trajectories // 8)]
    # rare letters: turns of some 30 tokens
    stop = tuple("jqzxvk")
    return [
        Request(f"{p}/{g}", prompt, 1000 * p + g, 400, stop=stop) for p, prompt in enumerate(prompts) for g in range(8)
    ]


def in_turns(engine: Any, model: Path, asked: list[Request], seconds: float, in_flight: int) -> list[SampledAnswer]:
    config = EnvironmentConfig(function="tests.played_environments:Patient", turn_tokens=64, workers=AT_ONCE)
    steps = Steps(config, lambda: Patient(seconds))
    wording = Wording(load_tokenizer(model), end_token_ids(model), 1000)
    with TurnSampler(engine, config, steps, wording, {"": {}}, in_flight, False) as sampler:
        return list(sampler.sample(asked))


def measured(work: Any) -> dict[str, float]:
    start = time.monotonic()
    answers: list[SampledAnswer] = work()
    seconds = time.monotonic() - start
    sampled = sum(a.sampled_tokens for a in answers)
    turns = sum(len(a.row.get("turn_starts", "1")) for a in answers)
    return {"seconds": seconds, "sampled_tokens": sampled, "turns": turns, "rate": sampled / seconds}


def device() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--trajectories", type=int, default=512)
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--engine", type=json.loads, default={}, help="JSON: settings of [engine]")
    options = parser.parse_args()
    settings = {"max_model_len": 512, "max_num_seqs": AT_ONCE, "kv_cache_gib": 1.0, "dtype": "float32"}
    config = EngineConfig.model_validate(settings | options.engine)
    asked = requests(options.trajectories)
    with tempfile.TemporaryDirectory() as name:
        # logits of one spread at any width, so that turns are as long
        shape = {"hidden_size": options.hidden_size, "layers": options.layers}
        sharpness = 4 * (128 / options.hidden_size) ** 0.5
        model = write_tiny_model(Path(name) / "model", vocabulary=832, sharpness=sharpness, **shape)
        with SamplingEngine(model, config) as engine:
            recording = Recording(engine)
            in_turns(recording, model, asked, 0.0, 2 * AT_ONCE)
            alone = [replace(request, key=f"{request.key}/alone") for request in recording.asked]
            arms = {
                "no tool": lambda: in_turns(engine, model, asked, 0.0, 2 * AT_ONCE),
                "tool 50 ms": lambda: in_turns(engine, model, asked, TOOL_S, 2 * AT_ONCE),
                "tool 50 ms, 256 in flight": lambda: in_turns(engine, model, asked, TOOL_S, AT_ONCE),
                "single turns": lambda: list(engine.sample(alone)),
            }
            found: dict[str, list[dict[str, float]]] = {arm: [] for arm in arms}
            for _ in range(options.repetitions):
                for arm, work in arms.items():
                    engine._engine.reset_prefix_cache()
                    found[arm].append(measured(work))
    rates = {arm: statistics.median(one["rate"] for one in all_of) for arm, all_of in found.items()}
    about = {"load": os.getloadavg(), "cores": len(os.sched_getaffinity(0)), "device": device(), **shape, **settings}
    about |= options.engine
    report = {"rates": rates, "share_with_tools": rates["tool 50 ms"] / rates["no tool"], "about": about, "raw": found}
    options.to.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
