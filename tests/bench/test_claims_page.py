"""docs/benchmarks/claims.md says what its data say."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bench.claims.collect import collect
from bench.claims.page import DATA, PAGE, page
from bench.claims.results import Results, at_accuracy
from bench.claims.studies import STUDIES, arms


def test_every_table_is_what_the_data_give() -> None:
    text = PAGE.read_text()
    assert page(Results(DATA), text) == text, "run python -m bench.claims.page"


def test_the_data_are_small() -> None:
    assert sum(file.stat().st_size for file in DATA.iterdir()) < 1_000_000


@pytest.mark.parametrize(
    ("bed", "studies"), [("demo", [*STUDIES, "doses"]), ("countdown", ["countdown"]), ("chains", ["chains"])]
)
def test_the_data_are_of_the_studies_and_their_settings_are_those_of_today(bed: str, studies: list[str]) -> None:
    """An arm whose definition has changed must be run again or leave the data."""
    known = {name.rpartition("-seed")[0]: arm.settings() for study in studies for name, arm in arms(study, 1).items()}
    found = Results(DATA, bed).settings
    assert found
    for name, own in found.items():
        expected = {key: value for key, value in json.loads(json.dumps(known[name].copy())).items() if key != "seed"}
        assert own == expected, name


def evaluation(step: int, right: list[int], n: int = 2) -> dict[str, Any]:
    numbers = dict.fromkeys(("entropy", "entropy_ended", "tokens", "cut_share"), 1.0)
    spent = dict.fromkeys(("cpu_sampling_s", "cpu_training_s", "cpu_sync_s"), float(step))
    shares = {"right_share": sum(right) / n / len(right), "distinct_right": [1] * len(right)}
    return {"step": step, "rollouts": 64 * step, "n": n, "right": right, **numbers, **spent, **shares}


def test_results_are_collected_and_read_back(tmp_path: Path) -> None:
    names = ("entropy", "kl", "log_ratio", "log_ratio_right", "clipped_tokens_share", "grad_norm", "right_share")
    steps = [
        {"step": i + 1, "policy_lag": i, "token_log_ratio_max": i, **dict.fromkeys(names, float(i))} for i in range(12)
    ]
    for base, last in (("x", [2, 2]), ("y", [0, 2])):
        one = {
            "arm": {"measured_on": "heldout", "seed": 0, "interval": 3},
            "evaluations": [evaluation(0, [0, 0]), evaluation(12, last)],
            "steps": steps,
        }
        (tmp_path / base).mkdir()
        (tmp_path / base / "some-arm-seed0.json").write_text(json.dumps(one))
    collect(tmp_path, tmp_path / "data", "bed")
    results = Results(tmp_path / "data", "bed")
    assert results.arms == ["some-arm"]
    assert results.settings == {"some-arm": {"measured_on": "heldout", "interval": 3}}
    assert results.cells("some-arm", 12) == {("x", 0): [1.0, 1.0], ("y", 0): [0.0, 1.0]}
    assert results.cells("some-arm", 12, k=3) == {}
    assert results.steps["step"].to_list() == [10, 12, 10, 12]
    assert results.steps["kl"].to_list() == pytest.approx([4.5, 10.5] * 2)
    assert isinstance(results.steps, pl.DataFrame)


def test_a_crossing_is_the_first_and_between_evaluations() -> None:
    rows = [evaluation(0, [0, 0]), evaluation(10, [2, 0]), evaluation(20, [2, 2]), evaluation(30, [0, 2])]
    assert at_accuracy(rows, 0.5, "step") == 10
    assert at_accuracy(rows, 0.75, "rollouts") == 15 * 64
    assert at_accuracy(rows[:2], 0.75, "rollouts") is None
