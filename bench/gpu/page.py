"""The tables of docs/benchmarks/gpu.md from the card's raw file: goal, others' figures, prediction, measurement.

A cell is empty where nothing is known. A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``; all else is
written by hand. A test makes the tables again and compares.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench.claims.page import written
from bench.claims.verdicts import table
from bench.gpu import plan, raw_file, speeds
from bench.gpu.prediction import SHEET, predict
from oapl_extras.plan.speeds import FILE

DOCS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
PAGE, RAW = DOCS / "gpu.md", DOCS / "data" / "gpu_card.jsonl"
GOALS = {"0.6B": 0.28, "4B": 0.40}
"""Share of the data sheet's 989 TFLOP/s, with every mend, in micro-batches of 32K tokens."""
PRIME_RL = "https://github.com/PrimeIntellect-ai/prime-rl/tree/main/benchmarks/baselines"
TORCHTITAN = "https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md"
NEMO_RL = "https://docs.nvidia.com/nemo/rl/latest/about/performance-summary.html"
ANCHORS = (  # what, where from, tokens/s of one GPU, share of 989 TFLOP/s
    ("Qwen3-0.6B, supervised, rows of 16K, FA3, recomputed, one H100", "prime-rl", PRIME_RL, "25,486", "23.7 %"),
    ("Qwen3-0.6B, RL trainer, rows of 16K, FA3, recomputed, one H100", "prime-rl", PRIME_RL, "11,896", "11.1 %"),
    ("Qwen3-4B, supervised, rows of 16K, FA2, recomputed, 8 H100", "prime-rl", PRIME_RL, "6,215", "26.6 %"),
    ("Qwen3-4B, RL trainer, rows of 16K, FA3, recomputed, 8 H100", "prime-rl", PRIME_RL, "3,253", "13.9 %"),
    ("Llama-3.1-8B, pretraining, selective recomputation, 8 H100", "torchtitan", TORCHTITAN, "5,762", "33 %"),
    ("the same, compiled", "torchtitan", TORCHTITAN, "6,667", "39 %"),
    ("Llama-3.1-8B, whole GRPO steps with sampling, 16 H100", "NeMo-RL v0.4", NEMO_RL, "1,562", ""),
    ("Qwen3-32B, whole GRPO steps with sampling, 32 H100", "NeMo-RL v0.4", NEMO_RL, "540", ""),
)
OF_SIZE = {"0.6B": ANCHORS[0], "4B": ANCHORS[2]}
"""Their rows are of 16K tokens: beside long answers."""
BEFORE = "H100, 2026-11-22 and 23"
Rows = Mapping[str, Mapping[str, Any]]


def main(raw: Path | None = None) -> None:
    """Write them, and the speeds that `oapl plan` takes."""
    rows = measured(raw or RAW)
    PAGE.write_text(page(PAGE.read_text(), rows))
    FILE.write_text(speeds.text(rows))


def measured(path: Path) -> dict[str, dict[str, Any]]:
    """Lines of the raw file that come from a GPU."""
    return {key: row for key, row in raw_file.read(path).items() if row.get("device") != "CPU"}


def page(text: str, rows: Rows) -> str:
    """The page with its tables made again."""
    makers: dict[str, Callable[[Rows], str]] = {
        "card-steps": steps,
        "card-rest": others,
        "card-profile": profiles,
        "card-anchors": lambda _: anchors(),
        "card-devices": devices,
    }
    return written(text, {name: partial(make, rows) for name, make in makers.items()})


def steps(rows: Rows) -> str:
    """Each planned step of the first ones, and further ones that were measured."""
    head = ("model, answers, micro-batch", "settings", "goal", "others", "predicted", "measured", "of the product")
    found = []
    for case in [*plan.FIRST, *(case for case in plan.rest() if case not in plan.FIRST)]:
        measurement = plan.step_of(*case)
        row = rows.get(measurement.key, {})
        if case not in plan.FIRST and not row:
            continue
        variant, size, length, budget = case
        goal = GOALS.get(size) if variant.startswith(("together", "auto")) else None
        anchor = OF_SIZE.get(size) if length == plan.LONG else None
        busy = f"{row['gpu_busy_s']:.2f} of {row['seconds']:.2f}" if row.get("gpu_busy_s") else ""
        found.append(
            (
                f"{size}, {length // 1024}K, {budget // 1024}K",
                variant,
                _percent(goal, 0),
                f"{anchor[3]}, {anchor[4]}" if anchor else "",
                _predicted(variant, size, length),
                _step(row),
                _percent(row.get("share_of_product")),
                _number(row.get("peak_gib"), 1),
                busy,
            )
        )
    return table((*head, "peak, GiB", "GPU busy, s of a step"), found)


def _predicted(variant: str, size: str, length: int) -> str:
    settings = plan.VARIANTS[variant]
    if "auto" in settings.values():
        return ""
    found = predict(size, plan.PROMPT, length, settings)
    return f"{_rounded(found.tokens_per_s)}, {_percent(found.share_of_sheet, 0)}"


def _rounded(value: float) -> str:
    """Two digits: a prediction has no more."""
    return f"{float(f'{value:.2g}'):,.0f}"


def _step(row: Mapping[str, Any]) -> str:
    if "error" in row:
        return str(row["error"])[:80].replace("|", "/")
    return f"{row['tokens_per_s']:,.0f}, {_percent(row['share_of_sheet'])}" if row else ""


def others(rows: Rows) -> str:
    """What is not a step: machine, ZeRO 3, output layer, sampling, starts, cache, the plain loop."""
    lines = []
    for measurement in plan.card():
        if measurement.part in ("step", "profile"):
            continue
        key = measurement.key
        lines.append((key, GOAL_OF.get(key, ""), BEFORE_OF.get(key, ""), _figure(measurement.part, rows.get(key, {}))))
    return table(("what", "goal", BEFORE, "measured"), lines)


GOAL_OF = {
    "zero3 0.6B, ZeRO 3": "at most 1.5 times ZeRO 1",
    **{f"stage 0.6B, {n} at once": "1.0 of bare with log-probs, 0.95 of bare without" for n in (1024, 256, 128)},
    "starts 0.6B, through the link, again from another folder": "15 s less than the first",
    "kv 0.6B, 48 at once behind 8,192 tokens, fp8": "half of `auto`",
}
BEFORE_OF = {
    "peaks products": "bfloat16 772, TF32 395, float32 51.0 TFLOP/s; copy 2.98 TB/s",
    "zero3 0.6B, ZeRO 3": "2.7 times ZeRO 1, at other sizes",
    "output 4B": "tf32 0.108 s, float32 0.528 s, log_softmax 0.046 s",
    "stage 0.6B, 128 at once": "16,220 tokens/s in two waves, another clock",
    "starts 0.6B, through the path, first": "97 to 137 s",
}


def _figure(part: str, row: Mapping[str, Any]) -> str:
    if not row or "error" in row:
        return str(row.get("error", ""))[:100].replace("|", "/")
    makers: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "host": lambda r: f"{r['ms']:.1f} ms",
        "peaks": lambda r: (
            ", ".join(f"{name} {value:,.1f}" for name, value in r["product_tflops"].items())
            + f" TFLOP/s; copy {r['copy_tb_per_s']:.2f} TB/s"
        ),
        "zero3": lambda r: f"{r['tokens_per_s']:,.0f} tokens/s, {_percent(r['share_of_sheet'])}",
        "output": lambda r: ", ".join(
            f"{name} {r[name]['seconds']:.3f} s" for name in ("tf32", "float32", "log_softmax")
        ),
        "stage": lambda r: (
            f"{r['tokens_per_s']:,.0f} tokens/s, {r['step_ms']['stage']:.1f} ms a step; {r['ratio']:.2f} and "
            f"{r['ratio_without_logprobs']:.2f}"
        ),
        "starts": lambda r: f"{r['seconds']:.0f} s: " + ", ".join(f"{k} {v:.0f}" for k, v in r["phases_s"].items()),
        "kv": lambda r: f"{r['ms']:.1f} ms a step",
        "peer": lambda r: (
            f"{r['tokens_per_s']:,.0f} tokens/s, {_percent(r['share_of_sheet'])}; {r['computed_with']['attention']}"
            + (", Liger" if r["computed_with"]["liger"] else "")
        ),
    }
    return makers[part](row)


def profiles(rows: Rows) -> str:
    """Milliseconds of a step by kind of kernel."""
    from bench.gpu.kernel_names import KINDS

    lines = []
    for case in plan.PROFILED:
        measurement = plan.profile_of(*case)
        row = rows.get(measurement.key, {})
        kinds = row.get("kinds_ms", {})
        cells = [_number(kinds.get(kind), 1) for kind in KINDS]
        ends = [_number(row.get(name), 1) for name in ("idle_ms", "step_ms")]
        counts = [_number(row.get(name), 0) for name in ("launches", "synchronisations")]
        lines.append((measurement.name, *cells, *ends, *counts))
    return table(("step", *KINDS, "idle", "whole", "launches", "synchronisations"), lines)


def anchors() -> str:
    """Others' published figures."""
    rows = [(what, f"[{source}]({url})", speed, share) for what, source, url, speed, share in ANCHORS]
    return table(("what", "source", "tokens/s of a GPU", f"of {SHEET:.0f} TFLOP/s"), rows)


def devices(rows: Rows) -> str:
    """Devices and versions of the lines."""
    if not rows:
        return "**No line is there yet: empty cells below were not measured.**"
    found: dict[tuple[str, str], int] = {}
    for row in rows.values():
        if "device" in row:
            versions = ", ".join(f"{name} {version}" for name, version in row["versions"].items())
            found[row["device"], versions] = found.get((row["device"], versions), 0) + 1
    lines = [(device, versions, str(count)) for (device, versions), count in found.items()]
    return table(("device", "versions", "lines"), lines)


def _percent(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{100 * value:.{digits}f} %"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"
