"""docs/benchmarks/gpu.md says what the card's raw file says, and leaves empty what was not measured."""

from pathlib import Path
from typing import Any

from bench.gpu import page, plan, raw_file


def test_the_tables_are_what_the_raw_file_gives() -> None:
    text = page.PAGE.read_text()
    assert text.count("<!-- table card-") == 5
    assert page.page(text, page.measured(page.RAW)) == text, "run python -m bench.gpu page"


def test_without_lines_no_cell_is_measured() -> None:
    for line in page.steps({}).splitlines()[2:]:
        assert [cell.strip() for cell in line.strip("|").split("|")][5:] == [""] * 4
    for line in page.others({}).splitlines()[2:]:
        assert line.endswith("|  |")


def test_a_line_is_shown_and_one_of_a_cpu_is_not(tmp_path: Path) -> None:
    path, key = tmp_path / "card.jsonl", plan.step_of("plain", "0.6B", 1024, 32768).key
    row: dict[str, Any] = {
        "key": key,
        "device": "NVIDIA H100",
        "versions": {"torch": "2.13.0"},
        "tokens_per_s": 34567.8,
        "share_of_sheet": 0.1234,
        "share_of_product": 0.16,
        "seconds": 0.95,
        "gpu_busy_s": 0.61,
        "peak_gib": 12.34,
    }
    raw_file.append(path, row)
    raw_file.append(path, row | {"key": "peaks products", "device": "CPU"})
    raw_file.append(path, {"key": "kv 0.6B, 48 at once behind 8,192 tokens, fp8", "error": "took longer than 100 s"})
    rows = page.measured(path)
    assert "peaks products" not in rows
    assert "| 34,568, 12.3 % | 16.0 % | 12.3 | 0.61 of 0.95 |" in page.steps(rows)
    assert page.others(rows).count("took longer than 100 s") == 1
    assert "| NVIDIA H100 | torch 2.13.0 | 1 |" in page.devices(rows)
