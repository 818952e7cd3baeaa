"""docs/benchmarks/gpu.md says what the card's raw file says, and leaves empty what was not measured."""

import tomllib
from pathlib import Path
from typing import Any

from bench.gpu import page, plan, raw_file, speeds
from oapl_extras.plan.speeds import FILE


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


def test_the_plans_speeds_are_what_the_raw_file_gives() -> None:
    assert speeds.text(page.measured(page.RAW)) == FILE.read_text(), "run python -m bench.gpu page"


def test_a_measured_line_replaces_a_prediction_and_names_itself() -> None:
    key = plan.step_of("auto", "4B", plan.LONG, 32768).key
    step = {"key": key, "device": "NVIDIA H200", "share_of_sheet": 0.3, "computed_with": {"recompute": "all"}}
    kv = {"device": "NVIDIA H200", "ms": 20.0}
    again = {"device": "NVIDIA H200", "seconds": 41.2}
    rows: dict[str, dict[str, Any]] = {
        key: step,
        "kv 0.6B, 48 at once behind 8,192 tokens, auto": kv,
        "starts 0.6B, through the link, again from another folder": again,
    }
    rows = {name: {"key": name, **row} for name, row in rows.items()}
    found = tomllib.loads(speeds.text(rows))
    (measured,) = [row for row in found["training_share"] if row["source"].startswith("measured on NVIDIA H200")]
    assert measured["value"] == 0.4, "layers that are computed again are arithmetic, too"
    assert (measured["answer_tokens"], round(measured["parameters"] / 1e9, 1)) == (plan.LONG, 4.0)
    assert measured["source"].endswith(key)
    (start,), (sampling,) = found["engine_start_s"], found["sampling_share"]
    assert start["value"] == 41
    # 1.2 GB of weights; keys and values of 28 layers x 2 x 1,024 numbers x 2 bytes for 48 sequences of 8,320 tokens
    assert sampling["value"] == round((2 * 595984384 + 48 * 8320 * 28 * 2 * 1024 * 2) / (0.02 * 4.8e12), 2)
