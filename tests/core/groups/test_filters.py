"""Filters that ship, against a transcription in plain Python: which groups stay, and under which reason others go."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oapl_core.errors import ConfigError
from oapl_core.groups.build import build
from oapl_core.groups.selection import SelectionCounts, select
from oapl_core.settings.experiment_file import parse_experiment
from tests.core.groups.test_build import details, make_run, write_scene
from tests.core.groups.test_thresholds import GROUPS, THRESHOLDS, known, rows_of

SHIPPED = ("any_correct", "mixed", "spread", "all")
BANDS = st.one_of(st.none(), st.tuples(st.sampled_from([0.0, 0.2, 0.5]), st.sampled_from([0.5, 2 / 3, 1.0])))


def frames(groups: Sequence[list[float | None]], right_from: float = 1.0) -> tuple[pl.DataFrame, pl.DataFrame]:
    rows = [
        row | {"rollout_id": f"{row['problem_id']}-{row['sample']}", "part": 0}
        for row in rows_of(list(groups), right_from)
    ]
    keys = "rollout_id problem_id policy_hash sample finish_reason response_tokens part".split()
    types = {"reward": pl.Float32, "correct": pl.Boolean}
    verdicts = pl.DataFrame(rows, schema_overrides=types, infer_schema_length=None)
    return pl.DataFrame(rows, infer_schema_length=None).select(keys), verdicts.select(
        "rollout_id", "reward", "correct", "outcome"
    )


def why_dropped(rewards: list[float], keep: str, band: tuple[float, float] | None, right_from: float) -> str | None:
    """The reason of a group's rows, of which these are the rewards that are known."""
    right = [reward >= right_from for reward in rewards]
    rate = sum(right) / len(right) if right else 0.0
    rules = [
        ("fewer_than_two_valid", len(rewards) < 2),
        ("pass_rate_below", band is not None and rate < band[0]),
        ("pass_rate_above", band is not None and rate > band[1]),
        ("no_correct_answer", keep in ("any_correct", "mixed") and not any(right)),
        ("all_correct", keep == "mixed" and all(right)),
        ("same_reward", keep == "spread" and len(set(rewards)) == 1),
    ]
    return next((reason for reason, applies in rules if applies), None)


@given(GROUPS, THRESHOLDS, st.sampled_from(SHIPPED), BANDS)
def test_each_group_stays_or_goes_under_its_reason(
    groups: list[list[float | None]], right_from: float, keep: str, band: tuple[float, float] | None
) -> None:
    keys, verdicts = frames(groups, right_from)
    kept, counts = select(keys, verdicts, [keep], "keep", band)
    reasons = [why_dropped(known(group), keep, band, right_from) for group in groups]
    assert set(kept["problem_id"]) == {f"p{g}" for g, reason in enumerate(reasons) if reason is None}
    expected: dict[str, int] = {}
    for group, reason in zip(groups, reasons, strict=True):
        expected["verifier_error"] = expected.get("verifier_error", 0) + len(group) - len(known(group))
        if reason:
            expected[reason] = expected.get(reason, 0) + len(known(group))
    assert counts.dropped == {reason: count for reason, count in expected.items() if count}


def chosen(
    groups: Sequence[list[float | None]], keep: Sequence[str], call: Any = None
) -> tuple[list[str], SelectionCounts]:
    kept, counts = select(*frames(groups), keep, "keep", None, *([call] if call else []))
    return kept["rollout_id"].to_list(), counts


def test_filters_of_a_list_see_what_those_before_left() -> None:
    groups: list[list[float | None]] = [[1.0, 0.0, 0.0], [1.0, 1.0, 0.5], [0.0, 0.0]]
    seen = []

    def call(name: str, left: pl.DataFrame) -> list[str | None]:
        seen.append((name, left["rollout_id"].to_list()))
        return ["low" if reward == 0.5 else None for reward in left["reward"]]

    kept, counts = chosen(groups, ["any_correct", "own:low", "spread"], call)
    assert seen == [("own:low", ["p0-0", "p0-1", "p0-2", "p1-0", "p1-1", "p1-2"])]
    assert kept == ["p0-0", "p0-1", "p0-2"]
    assert counts.dropped == {"no_correct_answer": 2, "low": 1, "same_reward": 2}
    assert counts.dropped_groups == {"no_correct_answer": 1, "same_reward": 1}


def test_a_group_that_an_own_filter_leaves_one_row_of_is_lost_to_that() -> None:
    kept, counts = chosen([[1.0, 0.0]], ["own:f"], lambda _name, _left: [None, "wrong"])
    assert (kept, counts.dropped) == ([], {"wrong": 1, "fewer_than_two_valid": 1})
    assert counts.dropped_groups == {"fewer_than_two_valid": 1}


def test_the_ledger_of_a_run_with_the_filters_of_before_is_as_it_was(tmp_path: Path) -> None:
    """A setting more in the ledger would make the groups of every run again."""
    run = make_run(tmp_path)
    write_scene(run)
    build(run, 0)
    entry = run.ledger.artifacts()["round_00/3_groups.parquet"]
    assert entry.config == {"keep": "any_correct", "truncated": "keep"}
    assert details(run)["dropped"] == {
        "missing_verdict": 1,
        "verifier_error": 5,
        "fewer_than_two_valid": 1,
        "no_correct_answer": 3,
    }
    assert "problems.parquet" not in entry.inputs


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"keep": "nope"}, "`rounds.0.keep`: there is no filter 'nope'; known are any_correct, mixed, spread, all, or"),
        ({"keep": ["spread", "nope"]}, "`rounds.0.keep`: there is no filter 'nope'"),
        ({"keep": []}, "`rounds.0.keep`: write the name of a filter, or a list of names"),
        ({"keep": ["spread", 2]}, "`rounds.0.keep`: write the name of a filter, or a list of names"),
        ({"pass_rate": [0.9, 0.1]}, r"`rounds.0.pass_rate`: the band is \[lowest, highest\]: write \[0.1, 0.9\]"),
        ({"pass_rate": [0.1, 2]}, "`rounds.0.pass_rate.1`: Input should be less than or equal to 1"),
        ({"pass_rate": [0.1]}, "`rounds.0.pass_rate.1` is missing"),
    ],
)
def test_a_filter_that_cannot_be_is_one_line(changes: dict[str, Any], complaint: str) -> None:
    problems = dict.fromkeys(("train", "validation", "heldout"), "/x.jsonl")
    with pytest.raises(ConfigError, match=complaint) as error:
        parse_experiment({"name": "e", "model": "/m", "problems": problems, "rounds": [changes]}, "test")
    assert "\n" not in str(error.value)
