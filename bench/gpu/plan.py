"""The card's measurements, what tells most first: what a part's time does not reach waits for a second start."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.gpu.measurement import Measurement

PLAIN: dict[str, Any] = {"recompute": "all", "kernels": "off", "attention": "torch"}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "attention kept": PLAIN | {"recompute": "attention"},
    "half kept": PLAIN | {"recompute": 2},
    "kept": PLAIN | {"recompute": "none"},
    "liger": PLAIN | {"kernels": "liger"},
    "flash-3": PLAIN | {"attention": "flash-3"},
    "flash-4": PLAIN | {"attention": "flash-4"},
    "compiled": PLAIN | {"recompute": "none", "compile": True},
    "liger, attention kept": PLAIN | {"recompute": "attention", "kernels": "liger"},
    "liger, kept": PLAIN | {"recompute": "none", "kernels": "liger"},
    "together": {"recompute": "attention", "kernels": "liger", "attention": "flash-4"},
    "together, kept": {"recompute": "none", "kernels": "liger", "attention": "flash-4"},
    "auto": {"recompute": "auto", "kernels": "auto", "attention": "auto"},
}
"""Settings of `[training]`: each mend alone, together, and what `auto` makes of them."""
SAME_PROCESS = ("plain", "attention kept", "half kept", "kept")
"""Others change what the process computes with, so nothing else may run after them."""
SHORT, LONG, PROMPT = 1024, 10240, 256
STEP_TOKENS = 32768
FIRST = (  # variant, size, tokens of an answer, tokens of a micro-batch
    ("plain", "0.6B", SHORT, 16384),
    ("plain", "0.6B", SHORT, 32768),
    ("plain", "0.6B", SHORT, 65536),
    ("plain", "0.6B", LONG, 32768),
    ("plain", "4B", SHORT, 32768),
    ("plain", "4B", LONG, 32768),
    ("attention kept", "0.6B", LONG, 32768),
    ("kept", "0.6B", SHORT, 16384),
    ("together", "0.6B", SHORT, 32768),
    ("together", "0.6B", LONG, 32768),
    ("together", "0.6B", SHORT, 65536),
    ("together", "4B", SHORT, 32768),
    ("together", "4B", LONG, 32768),
    ("together", "1.7B", SHORT, 32768),
    ("auto", "0.6B", SHORT, 32768),
    ("auto", "4B", LONG, 32768),
    ("liger", "0.6B", SHORT, 32768),
    ("liger", "4B", LONG, 32768),
    ("flash-4", "0.6B", LONG, 32768),
    ("flash-4", "4B", LONG, 32768),
    ("together, kept", "0.6B", SHORT, 32768),
    ("flash-3", "4B", LONG, 32768),
    ("compiled", "0.6B", SHORT, 32768),
    ("liger, kept", "0.6B", SHORT, 32768),
    ("liger, attention kept", "4B", LONG, 32768),
)


PROFILED = (
    ("plain", "0.6B", SHORT, 32768),
    ("plain", "4B", LONG, 32768),
    ("together", "0.6B", SHORT, 32768),
    ("together", "4B", LONG, 32768),
    ("liger", "0.6B", SHORT, 32768),
    ("liger", "4B", LONG, 32768),
)


def card() -> list[Measurement]:
    """Of one H100 or H200."""
    steps = [*FIRST, *(case for case in rest() if case not in FIRST)]
    return [
        *hosts(28),
        Measurement("peaks", "products", {}),
        *(step_of(*case) for case in steps),
        *(profile_of(*case) for case in PROFILED),
        *zero_stages("0.6B", SHORT, 32768),
        *(Measurement("output", size, {"size": size, "tokens": 8192}, 40.0) for size in ("4B", "0.6B")),
        *engines("0.6B", at_once=(1024, 128, 256), tokens=256, context=8192, long_at_once=48),
        *peers(),
    ]


def chosen(planned: list[Measurement], only: Sequence[str]) -> list[Measurement]:
    """Those whose key one of the regular expressions finds, in the expressions' order; without expressions all."""
    found = [m for pattern in only for m in planned if re.search(pattern, m.key)]
    return list({m.key: m for m in found}.values()) if only else planned


def rest() -> Iterator[tuple[str, str, int, int]]:
    """Every variant of every size and length, in micro-batches of 32K tokens, and three sizes of micro-batches."""
    for variant in VARIANTS:
        for size in ("0.6B", "1.7B", "4B"):
            for length in (SHORT, LONG):
                yield variant, size, length, 32768
                if variant in ("plain", "together"):
                    yield from ((variant, size, length, budget) for budget in (16384, 65536))


def tiny() -> list[Measurement]:
    """The same parts in sizes for a CPU, to try the program."""
    small = {"size": "tiny", "prompt": 8, "length": 24, "tokens": 128, "steps": 3, "warm": 1}
    training = {"dtype": "float32", "tokens_per_micro_batch": 128}
    return [
        *hosts(2),
        Measurement("peaks", "products", {"size": 256}),
        *(
            Measurement("step", name, {**small, "training": training | VARIANTS[name]}, 120.0, process_of(name))
            for name in ("plain", "kept", "flash-4", "auto")
        ),
        Measurement("profile", "plain", {**small, "training": training | PLAIN}),
        *(
            Measurement("zero3", f"ZeRO {stage}", {**small, "training": training | PLAIN | {"zero_stage": stage}}, 120)
            for stage in (1, 3)
        ),
        Measurement("output", "tiny", {"size": "tiny", "tokens": 64, "vocabulary": 512}),
        *engines("tiny", at_once=(16,), tokens=8, context=32, long_at_once=4),
        Measurement("peer", "recomputed", {**small, "training": training | PLAIN}),
    ]


def hosts(layers: int) -> Iterator[Measurement]:
    """On one thread of the CPU, which rates the core, and through the device."""
    for place, environment in (("CPU", {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}), ("device", {})):
        for zero in (None, 1, 3):
            for recompute in (True, False) if zero is None else (True,):
                way = "torch" if zero is None else f"ZeRO {zero}"
                name = f"{place}, {way}" + ("" if recompute else ", kept")
                options = {"layers": layers, "recompute": recompute, "zero": zero}
                yield Measurement("host", name, options, 40.0, place, environment)


def step_of(variant: str, size: str, length: int, budget: int) -> Measurement:
    """A step of at least 32K tokens, in micro-batches of ``budget``."""
    options = {
        "size": size,
        "prompt": PROMPT,
        "length": length,
        "tokens": max(STEP_TOKENS, budget),
        "training": {"dtype": "bfloat16", "tokens_per_micro_batch": budget, **VARIANTS[variant]},
    }
    name = f"{size}, {length // 1024}K answers, {budget // 1024}K micro-batch, {variant}"
    # the first of a size writes the model, and other kernels are compiled when they are first used
    bound_s = 90.0 if size != "4B" and variant in SAME_PROCESS else 150.0
    return Measurement("step", name, options, bound_s, process_of(variant))


def zero_stages(size: str, length: int, budget: int) -> Iterator[Measurement]:
    for stage in (1, 3):
        options = dict(step_of("plain", size, length, budget).options)
        training: Mapping[str, Any] = options["training"]
        yield Measurement("zero3", f"{size}, ZeRO {stage}", options | {"training": {**training, "zero_stage": stage}})


def profile_of(variant: str, size: str, length: int, budget: int) -> Measurement:
    step = step_of(variant, size, length, budget)
    return Measurement("profile", step.name, step.options, 60.0, process_of(variant))


def engines(size: str, at_once: tuple[int, ...], tokens: int, context: int, long_at_once: int) -> Iterator[Measurement]:
    """The stage with several numbers of requests; starts, those through the link first; long contexts in 8 bits."""
    of_stage = {"size": size, "at_once": max(at_once), "prompt": 16, "tokens": tokens, "share": 0.4}
    for count in at_once:
        yield Measurement("stage", f"{size}, {count} at once", {**of_stage, "requests": count}, 270.0)
    of_start = {"size": size, "at_once": min(at_once), "prompt": 16, "tokens": tokens, "share": 0.5}
    for through in ("link", "path"):
        for first in (True, False):
            name = f"{size}, through the {through}, {'first' if first else 'again from another folder'}"
            yield Measurement("starts", name, {**of_start, "through": through, "first": first}, 150.0, name)
    of_long = {"size": size, "at_once": long_at_once, "prompt": context, "tokens": tokens, "share": 0.9}
    for kv in ("auto", "fp8"):
        name = f"{size}, {long_at_once} at once behind {context:,} tokens, {kv}"
        yield Measurement("kv", name, {**of_long, "kv": kv}, 100.0, kv)


def peers() -> Iterator[Measurement]:
    for size, length in (("0.6B", SHORT), ("4B", LONG), ("0.6B", LONG), ("4B", SHORT)):
        for recompute, way in (("all", "recomputed"), ("none", "kept")):
            budget = 32768 if recompute == "all" else 16384  # what is kept of 4B and long rows must fit
            step = step_of("plain", size, length, budget)
            training = {**step.options["training"], "recompute": recompute}
            name = f"{size}, {length // 1024}K answers, {budget // 1024}K micro-batch, {way}"
            yield Measurement("peer", name, {**step.options, "training": training}, 60.0)


def process_of(variant: str) -> str:
    """Variants that may share a process have the same name of it."""
    return "plain" if variant in SAME_PROCESS else variant
