"""Each fault of sampling is counted with the right number."""

from pathlib import Path
from typing import Any

import pytest

from oapl_core import tables
from oapl_core.groups.build import build
from tests.core.groups.test_build import details, make_run, put, rollout, verdict, write_round


def facts(folder: Path, rows: list[dict[str, Any]], **keys: Any) -> dict[str, Any]:
    """What the ledger says about a round of these rows, with two answers for each problem."""
    run = make_run(folder, **keys)
    write_round(run, [rows], [[verdict(row["problem_id"], row["sample"], 1.0) for row in rows]])
    build(run, 0)
    found: dict[str, Any] = details(run)["trust"]
    return found


def whole(problem: str, samples: int = 8, **changes: Any) -> list[dict[str, Any]]:
    return [rollout(problem, i, **changes) for i in range(samples)]


def test_a_whole_round_of_different_answers_has_nothing_to_report(tmp_path: Path) -> None:
    found = facts(tmp_path, whole("a") + whole("b"))
    assert found.pop("expected_samples") == 16
    assert not any(found.values())


def test_missing_samples_are_counted_with_the_problems_that_lack_them(tmp_path: Path) -> None:
    found = facts(tmp_path, whole("a") + whole("b", samples=5) + whole("c", samples=7))
    assert (found["missing_samples"], found["incomplete_groups"]) == (4, 2)


def test_a_problem_without_any_sample_is_missing_too(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_round(run, [whole("a")], [[verdict("a", i, 1.0) for i in range(8)]])
    prompts = [
        {"problem_id": p, "split": s, "prompt": p, "prompt_ids": [1]}
        for p, s in (("a", "train"), ("b", "train"), ("v", "validation"))
    ]
    put(run, run.prompts, tables.PROMPTS, prompts)
    build(run, 0)
    found = details(run)["trust"]
    assert (found["expected_samples"], found["missing_samples"], found["incomplete_groups"]) == (16, 8, 1)


def test_equal_ids_in_a_group_are_duplicates_and_over_groups_are_not(tmp_path: Path) -> None:
    same = whole("a", samples=3, response_ids=[5, 6], logprobs=[-1.0, -1.0])
    found = facts(tmp_path, same + whole("b")[:3] + [rollout("c", 0, response_ids=[5, 6])])
    assert found["duplicates"] == 2
    assert found["duplicate_share"] == pytest.approx(2 / 7)


def test_truncated_rollouts_are_counted(tmp_path: Path) -> None:
    found = facts(tmp_path, whole("a", samples=3, finish_reason="length") + whole("b", samples=5))
    assert (found["truncated"], found["truncated_share"]) == (3, 3 / 8)
