"""Rungs of the engine: it samples and loads other weights, and the trainer gives the log-probs that it recorded."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from oapl_core.devices import visible_gpus
from oapl_core.errors import StageFailed
from oapl_extras.prove import made

_NOISE, _ROUNDINGS = 1e-3, 4.0
"""Largest mean difference between engine and trainer, nats per token: in float32, and in multiples of the trainer's own
rounding. Engine and trainer both round, each in its own order.
"""


def engine(folder: Path) -> dict[str, Any]:
    """Start the engine, sample, load other weights into it, sample again."""
    from oapl_core.rollouts.engine import SamplingEngine
    from oapl_core.rollouts.requests import Request

    config = made.experiment(folder)
    assert config.model is not None
    # in a process of its own: vLLM starts otherwise where this one has used the GPU
    subprocess.run([sys.executable, "-m", "oapl_extras.prove.made", str(folder)], check=True)
    on_gpu = bool(visible_gpus())
    size = json.loads((config.model / "config.json").read_text(encoding="utf-8"))
    vocabulary = (size.get("text_config") or size)["vocab_size"]
    length = config.sampling.max_tokens
    ids = made.prompts(32 if on_gpu else 8, min(vocabulary, 1000), 64)
    asked = [
        Request(f"{i}-{j}", prompt, seed=made.GROUP * i + j, max_tokens=length)
        for i, prompt in enumerate(ids)
        for j in range(made.GROUP)
    ]
    other = folder / "other"
    began = time.monotonic()
    with SamplingEngine(config.model, config.engine) as sampler:
        start = time.monotonic() - began
        list(sampler.sample(asked[:8]))  # the first kernels are compiled
        began = time.monotonic()
        answers = sorted(sampler.sample(asked), key=lambda a: a.request.seed)
        speed = sum(len(a.response_ids) for a in answers) / (time.monotonic() - began)
        began = time.monotonic()
        sampler.load(other)
        reload = time.monotonic() - began
        later = sorted(sampler.sample(asked[:16]), key=lambda a: a.request.seed)
        computes = f"{sampler.name} in {sampler.dtype}"
    if [a.response_ids for a in later] == [a.response_ids for a in answers[:16]]:
        raise StageFailed("the engine samples the same with other weights: it did not load them")
    (folder / "computes").write_text(sampler.dtype, encoding="utf-8")
    made.write_sampled(folder / "sampled.json", answers)
    made.write_sampled(folder / "other.json", later)
    figure = f"{computes}: starts in {start:.0f} s, samples {speed:,.0f} tokens/s, loads weights in {reload:.1f} s"
    return {"figure": figure, "start_s": start, "tokens_per_s": speed, "reload_s": reload}


def logprobs(folder: Path) -> dict[str, Any]:
    """Score what the engine sampled: with its weights, in each type; and with other ones, which must be noticed."""
    config = made.experiment(folder)
    assert config.model is not None
    dtype = config.training.dtype
    rows, later = (made.read_sampled(folder / name) for name in ("sampled.json", "other.json"))
    rows, other = rows[:32], folder / "other"
    by_type = {kind: _scored(config.model, rows, kind) for kind in dict.fromkeys(("float32", dtype))}
    rounding = _apart(by_type["float32"], by_type[dtype])
    bound = max(_NOISE, _ROUNDINGS * rounding)
    nats: dict[str, float] = {kind: _apart(scored, _recorded(rows)) for kind, scored in by_type.items()}
    nats["after loading other weights"] = _apart(_scored(other, later, dtype), _recorded(later))
    for what, apart in nats.items():
        if not apart <= bound:
            computes = (folder / "computes").read_text(encoding="utf-8")
            raise StageFailed(
                f"log-probs of engine and trainer differ by {apart:.2g} nats per token ({what}), rounding explains "
                f"{bound:.2g}: the engine computes in {computes}, the trainer in {dtype}; set engine.dtype and "
                "training.dtype alike, and leave out engine.options"
            )
    stale = _apart(_scored(config.model, later, dtype), _recorded(later))
    if not stale > 2 * max(nats.values()):
        raise StageFailed(
            f"weights of another round are {stale:.2g} nats per token away, no more than rounding: not told apart"
        )
    differences = ", ".join(f"{what} {value:.2g}" for what, value in nats.items())
    figure = f"{differences} nats per token (rounding: {rounding:.2g}); weights of another round {stale:.2g}, noticed"
    return {"figure": figure, "nats": nats, "rounding": rounding, "stale": stale}


def _recorded(rows: list[Any]) -> list[float]:
    return [logprob for _, _, logprobs in rows for logprob in logprobs]


def _apart(one: list[float], other: list[float]) -> float:
    """Return the mean difference per token, nats."""
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one)


def _scored(model_dir: Path, rows: list[Any], dtype: str) -> list[float]:
    """Compute the trainer's log-probs of every response token."""
    import torch

    from oapl_core.training.layouts.packing import use_packing
    from oapl_core.training.model.checkpoint import cast, load_model
    from oapl_core.training.model.logprobs import Policy

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_model(model_dir).model.to(device)
    cast(model, getattr(torch, dtype))
    policy = Policy(model, 1.0, 4096, use_packing(model, "auto", getattr(torch, dtype)))
    logprobs: list[float] = []
    for prompt, response, _ in rows:
        ids = torch.tensor([prompt + response], device=device)
        sizes = (torch.tensor([n], device=device) for n in (len(prompt), ids.shape[1]))
        with torch.no_grad():
            logprobs += policy(ids, *sizes)[0, len(prompt) - 1 :].tolist()
    return logprobs
