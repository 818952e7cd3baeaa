"""What docs/benchmarks/baselines.md says of falls and of what came before them is what its data give."""

import json
import re
from pathlib import Path

from bench.claims.early_warning import fell_at, warned_at

BENCHMARKS = Path("docs/benchmarks")
NAMES = {"GRPO, token IS": "grpo_token_is", "REINFORCE": "reinforce", "OAPL": "oapl"}


def number(text: str) -> int | None:
    found = re.match(r"step (\d+)", text)
    return int(found[1]) if found else None


def test_the_table_of_falls_is_its_data() -> None:
    data = json.loads((BENCHMARKS / "early_warning.json").read_text())
    page = (BENCHMARKS / "baselines.md").read_text().partition("| arm | pass@1: base, best, end |")[2]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if "seed 0 |" in line]
    assert len(rows) == len(data) == 3
    for arm, curve, fell, right, size in rows:
        found = data[f"{next(name for label, name in NAMES.items() if arm.startswith(label))}-seed0"]
        columns = found["steps"]
        steps = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        assert f"{len(steps)} steps" in arm
        assert number(fell) == fell_at(found["evaluations"])
        assert number(right) == warned_at(steps, "log_ratio_right")
        assert number(size) == warned_at(steps, "effective_sample_size")
        solved = [100 * row["pass_at_1"] for row in found["evaluations"]]
        begin, best, end = map(float, re.findall(r"\d+\.\d", curve))
        assert [begin, best, end] == [round(one, 1) for one in (solved[0], max(solved), solved[-1])]
