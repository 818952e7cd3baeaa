"""The table of docs/benchmarks/gpu.md: goal, published figures, what the component model says, what was measured."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.gpu.predicted import predict

PAGE = Path("docs/benchmarks/gpu.md")
_BEGIN, _END = "<!-- made by bench.gpu page -->", "<!-- end -->"
_SHEET = 989.0


class Row(NamedTuple):
    """A line of the table."""

    what: str
    goal: str
    anchor: str
    size: str
    length: int


ROWS = (
    Row("trainer, 0.6B, answers of 1,024", "", "26,005 tokens/s, 16.8 % (prime-rl, SFT, 8K)", "0.6B", 1024),
    Row("trainer, 0.6B, answers of 10,240", "28 %", "12,327 tokens/s, 11.5 % (prime-rl, RL, 16K)", "0.6B", 10240),
    Row("trainer, 1.7B, answers of 10,240", "", "", "1.7B", 10240),
    Row("trainer, 4B, answers of 1,024", "", "", "4B", 1024),
    Row("trainer, 4B, answers of 10,240", "40 %", "3,120 tokens/s, 13.3 % (prime-rl, RL, 16K, 8 GPUs)", "4B", 10240),
)


def table(page: str, lines: Sequence[Mapping[str, Any]]) -> str:
    """``page`` with its table made of a card's lines; cells of what was not measured are empty."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n\n{rows(lines)}\n{_END}{after}"


def rows(lines: Sequence[Mapping[str, Any]]) -> str:
    """Markdown."""
    out = [
        "| what | goal, of 989 TFLOP/s | published | predicted: as it was, mended | measured: plain | together |",
        "|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        said = [
            f"{found.tokens_per_s:,.0f} tokens/s, {found.utilisation:.1%}"
            for found in (predict(row.size, row.length, mended) for mended in (False, True))
        ]
        cells = [_step(lines, row, mend) for mend in ("plain", "together")]
        out.append(f"| {row.what} | {row.goal} | {row.anchor} | {'; '.join(said)} | {cells[0]} | {cells[1]} |")
    stages = {at_once: _found(lines, f"stage size=0.6B at_once={at_once} ") for at_once in (128, 256, 1024)}
    measured = "; ".join(f"{line['of_bare']:.2f} at {at_once}" for at_once, line in stages.items() if line)
    out.append(f"| stage, of bare `LLM.generate` without log-probs | 0.95 | | | | {measured} |")
    start = _found(lines, "starts ")
    out.append(
        f"| second start of an engine, of the first | 0.33 | | | | {start.get('of_first', '') if start else ''} |"
    )
    ours, peer = (_found(lines, key) for key in ("step size=4B length=1024 sequences=64 mend=together", "peer size=4B"))
    ratio = f"{ours['tokens_per_s'] / peer['tokens_per_s']:.2f}" if ours and peer else ""
    out.append(f"| trainer, 4B, of a plain transformers loop on the same work | 1 | | | | {ratio} |")
    one, three = (
        _found(lines, f"step size=0.6B length=1024 sequences=64 mend=plain budget=16384 zero={n}") for n in (1, 3)
    )
    slower = f"{one['tokens_per_s'] / three['tokens_per_s']:.2f}" if one and three else ""
    out.append(f"| ZeRO 3, times as slow as ZeRO 1 on one GPU | 1.3 | | | {slower} | |")
    return "\n".join(out) + "\n"


def _found(lines: Sequence[Mapping[str, Any]], key: str) -> Mapping[str, Any] | None:
    return next((line for line in lines if f"{line['key']} ".startswith(key) and "error" not in line), None)


def _step(lines: Sequence[Mapping[str, Any]], row: Row, mend: str) -> str:
    sequences = 64 if row.length == 1024 else 8
    line = _found(
        lines, f"step size={row.size} length={row.length} sequences={sequences} mend={mend} budget=32768 zero=1"
    )
    if line is None:
        return ""
    return f"{line['tokens_per_s']:,.0f} tokens/s, {line['tflops'] / _SHEET:.1%}"
