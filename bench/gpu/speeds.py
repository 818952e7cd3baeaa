"""oapl_extras/plan/speeds.toml, which `oapl plan` reads: measured where the card has a line, else predicted.

training_share    what a step's layers compute, with what they compute again, of 989 TFLOP/s
sampling_share    what a decoding step reads, weights and key-value cache, of the data sheet's bandwidth
engine_start_s    a start with the cache that the round before left
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from bench.gpu import plan
from bench.gpu.prediction import predict
from bench.gpu.shapes import HEAD, KEY_HEADS, SIZES, VOCABULARY
from oapl_core.planning.model_size import ModelSize
from oapl_core.planning.recomputation import Recomputation, recomputed_share

RAW_NAME = "docs/benchmarks/data/gpu_card.jsonl"
HEAD_LINE = "# Written by `python -m bench.gpu page` from the raw file of the card; a test compares.\n"
BANDWIDTH = {"H100": 3.35, "H200": 4.8}
"""TB/s, data sheets of the SXM modules."""
LOCKED: dict[str, Any] = {"recompute": "attention", "kernels": "liger", "attention": "torch"}
"""Settings that `auto` comes to with the packages of requirements/cuda.lock, which has no FlashAttention 3 or 4."""
GUESSED_SHARE, STARTED_S = 0.6, 119.0
"""Without a line: a guess, and what an H100 took on 2026-11-23 for 0.6 billion weights (97 to 137 s)."""
Rows = Mapping[str, Mapping[str, Any]]


def text(rows: Rows) -> str:
    """Write the file's text from the card's lines."""
    found = [("training_share", row) for row in _training(rows)]
    found += [("sampling_share", _sampling(rows)), ("engine_start_s", _start(rows))]
    return HEAD_LINE + "".join(_table(name, row) for name, row in found)


def _table(name: str, row: Mapping[str, Any]) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in row.items()]  # such values are the same in TOML
    return "\n".join(["", f"[[{name}]]", *lines, ""])


def model_size(size: str) -> ModelSize:
    """Shape of a size of ``shapes.SIZES``, its weights counted once where the output layer is tied."""
    width, inner, layers, heads, tied = SIZES[size]
    attended, keys = heads * HEAD, KEY_HEADS * HEAD
    weights = layers * (2 * width * attended + 2 * width * keys + 3 * width * inner)
    weights += (1 if tied else 2) * VOCABULARY * width
    return ModelSize(weights, layers, attended, keys, width, inner, VOCABULARY)


def _training(rows: Rows) -> Iterator[dict[str, Any]]:
    for size in ("0.6B", "1.7B", "4B", "8B"):
        for length in (plan.SHORT, plan.LONG):
            model = model_size(size)
            row = rows.get(plan.step_of("auto", size, length, plan.STEP_TOKENS).key, {})
            if row.get("share_of_sheet"):
                share, source = row["share_of_sheet"], f"measured on {row['device']}: {RAW_NAME}, {row['key']}"
                recompute = row["computed_with"]["recompute"]
            else:
                share = predict(size, plan.PROMPT, length, LOCKED).share_of_sheet
                source = "predicted for an H100, not measured: bench/gpu/prediction.py"
                recompute = LOCKED["recompute"]
            yield _row(_whole(share, recompute, model, length), model, length, source)


def _whole(share: float, recompute: Recomputation, model: ModelSize, length: int) -> float:
    """Share of the arithmetic that was done, recomputation included, as the plan counts it."""
    return round(share * (1 + recomputed_share(recompute, model, plan.PROMPT + length) / 3), 2)


def _sampling(rows: Rows) -> dict[str, Any]:
    measurement = next(m for m in plan.card() if m.part == "kv" and m.options["kv"] == "auto")
    row, model, options = rows.get(measurement.key, {}), model_size("0.6B"), measurement.options
    bandwidth = next((tb for name, tb in BANDWIDTH.items() if name in row.get("device", "")), None)
    if not row.get("ms") or bandwidth is None:
        return _row(GUESSED_SHARE, model, plan.LONG, "a guess, not measured")
    context = options["prompt"] + options["tokens"] / 2
    read = 2 * model.parameters + options["at_once"] * context * 2 * model.kept_numbers
    share = read / (row["ms"] / 1e3 * bandwidth * 1e12)
    return _row(round(share, 2), model, plan.LONG, f"measured on {row['device']}: {RAW_NAME}, {row['key']}")


def _start(rows: Rows) -> dict[str, Any]:
    measurement = next(
        m for m in plan.card() if m.part == "starts" and m.options["through"] == "link" and not m.options["first"]
    )
    row, model = rows.get(measurement.key, {}), model_size("0.6B")
    if not row.get("seconds"):
        return _row(STARTED_S, model, plan.LONG, "measured on an H100, 2026-11-23: docs/benchmarks/gpu.md")
    return _row(round(row["seconds"]), model, plan.LONG, f"measured on {row['device']}: {RAW_NAME}, {row['key']}")


def _row(value: float, model: ModelSize, length: int, source: str) -> dict[str, Any]:
    return {"value": value, "parameters": model.parameters, "answer_tokens": length, "source": source}
