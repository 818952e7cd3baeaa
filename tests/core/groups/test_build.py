"""groups.build: real Parquet in, real Parquet out; every rollout is kept or counted."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from oapl_core import tables
from oapl_core.errors import DataError
from oapl_core.groups.build import build
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import parse_experiment

# problem -> reward of each sample; None: verifier_error, "": no verdict at all
SCENE: dict[str, list[Any]] = {
    "mixed": [1.0, 0.0, 1.0],
    "right": [1.0, 1.0, 1.0],
    "wrong": [0.0, 0.0, 0.0],
    "lonely": [1.0, None, ""],
    "partly": [None, 0.0, 1.0],
    "broken": [None, None, None],
}


def make_run(folder: Path, keep: str = "any_correct", truncated: str = "keep") -> Run:
    problems = dict.fromkeys(("train", "validation", "heldout"), folder / "unused.jsonl")
    rounds = [{"keep": keep, "truncated": truncated}]
    values = {"name": "g", "runs_dir": folder, "model": folder, "problems": problems, "rounds": rounds}
    return Run.create(parse_experiment(values, "test"))


def rollout(problem: str, sample: int, **changes: Any) -> dict[str, Any]:
    row = {
        "run": "g",
        "round": 0,
        "problem_id": problem,
        "rollout_id": f"{problem}/{sample}",
        "sample": sample,
        "policy_hash": "abc",
        "response_ids": [5, sample],
        "logprobs": [-0.5, -1.0 - sample],
        "logprobs_mode": "raw_logprobs",
        "finish_reason": "stop",
        "text": "x",
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "max_tokens": 9,
        "seed": 1,
        "engine": "test",
        "sampled_at": datetime(2026, 1, 1, tzinfo=UTC),
    }
    return row | changes


def verdict(problem: str, sample: int, reward: float | None, right_from: float = 1.0) -> dict[str, Any]:
    empty: dict[str, Any] = dict.fromkeys(name for name, _ in tables.VERDICTS)
    outcome = "verifier_error" if reward is None else "passed" if reward else "wrong_answer"
    ids = {"rollout_id": f"{problem}/{sample}", "problem_id": problem}
    return empty | ids | {"reward": reward, "correct": tables.is_correct(reward, right_from), "outcome": outcome}


def write_round(run: Run, parts: list[list[dict[str, Any]]], verdicts: list[list[dict[str, Any]]]) -> None:
    problems = sorted({row["problem_id"] for part in parts for row in part})
    prompts = [{"problem_id": p, "split": "train", "prompt": p, "prompt_ids": [1, len(p)]} for p in problems]
    put(run, run.prompts, tables.PROMPTS, prompts)
    for number, (rows, judged) in enumerate(zip(parts, verdicts, strict=True)):
        put(run, run.rollouts(0) / f"part-{number:05d}.parquet", tables.ROLLOUTS, rows)
        put(run, run.verdicts(0) / f"part-{number:05d}.parquet", tables.VERDICTS, judged)


def put(run: Run, path: Path, fields: Any, rows: list[dict[str, Any]]) -> None:
    with run.writing(path, {}, {}) as draft:
        draft.rows = tables.write_table(draft.path, fields, rows)


def write_scene(run: Run) -> None:
    parts, verdicts = [], []
    for problem, rewards in SCENE.items():
        parts.append([rollout(problem, i) for i in reversed(range(len(rewards)))])
        verdicts.append([verdict(problem, i, r) for i, r in enumerate(rewards) if r != ""])
    write_round(
        run,
        [parts[0] + parts[1], parts[2] + parts[3], parts[4] + parts[5]],
        [verdicts[0] + verdicts[1], verdicts[2] + verdicts[3], verdicts[4] + verdicts[5]],
    )


def details(run: Run) -> dict[str, Any]:
    return dict(run.ledger.artifacts()["round_00/3_groups.parquet"].details)


@pytest.mark.parametrize(
    ("keep", "kept", "dropped"),
    [
        ("any_correct", ["mixed", "right", "partly"], {"no_correct_answer": 3}),
        ("mixed", ["mixed", "partly"], {"no_correct_answer": 3, "all_correct": 3}),
        ("all", ["mixed", "right", "wrong", "partly"], {}),
    ],
)
def test_kept_groups_and_every_dropped_row_are_counted(
    tmp_path: Path, keep: str, kept: list[str], dropped: dict[str, int]
) -> None:
    run = make_run(tmp_path, keep)
    write_scene(run)
    build(run, 0)
    groups = pl.read_parquet(run.groups(0))
    assert groups["problem_id"].unique(maintain_order=True).to_list() == kept
    counts = details(run)
    assert counts["dropped"] == {"missing_verdict": 1, "verifier_error": 5, "fewer_than_two_valid": 1} | dropped
    assert counts["kept_rollouts"] + sum(counts["dropped"].values()) == counts["rollouts"] == 18
    assert counts["kept_groups"] == len(kept)
    assert counts["kept_groups"] + sum(counts["dropped_groups"].values()) == counts["groups"] == 6
    assert counts["correct_rollouts"] == 7
    assert counts["policy_hash"] == "abc"


def test_rows_of_a_group_are_contiguous_ordered_and_carry_their_own_tokens(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_scene(run)
    build(run, 0)
    rows = tables.read_table(run.groups(0), tables.GROUPS).to_pylist()
    assert [row["group"] for row in rows] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert [row["rollout_id"] for row in rows[:3]] == ["mixed/0", "mixed/1", "mixed/2"]
    for row in rows:
        problem, sample = row["rollout_id"].split("/")
        assert row["response_ids"] == [5, int(sample)]
        assert row["behavior_logprobs"] == [-0.5, -1.0 - int(sample)]
        assert row["prompt_ids"] == [1, len(problem)]
        assert row["reward"] == SCENE[problem][int(sample)]


def test_building_again_does_nothing_until_a_verdict_changes(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_scene(run)
    build(run, 0)
    before = run.groups(0).stat().st_mtime_ns
    build(run, 0)
    assert run.groups(0).stat().st_mtime_ns == before
    judged = [verdict(p, i, 0.0) for p in ("mixed", "right") for i in range(3)]
    put(run, run.verdicts(0) / "part-00000.parquet", tables.VERDICTS, judged)
    build(run, 0)
    assert pl.read_parquet(run.groups(0))["problem_id"].unique().to_list() == ["partly"]


def test_a_round_without_any_group_is_written_and_explained(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_round(run, [[rollout("a", 0), rollout("a", 1)]], [[verdict("a", 0, 0.0), verdict("a", 1, 0.0)]])
    build(run, 0)
    assert tables.read_table(run.groups(0), tables.GROUPS).num_rows == 0
    assert details(run)["dropped"] == {"no_correct_answer": 2}


def test_an_empty_response_is_dropped_and_counted(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    rows = [rollout("a", 0), rollout("a", 1), rollout("a", 2, response_ids=[], logprobs=[])]
    write_round(run, [rows], [[verdict("a", i, 1.0) for i in range(3)]])
    build(run, 0)
    assert details(run)["dropped"] == {"empty_response": 1}
    assert pl.read_parquet(run.groups(0))["rollout_id"].to_list() == ["a/0", "a/1"]


@pytest.mark.parametrize(("truncated", "kept"), [("keep", ["a/0", "a/1", "a/2"]), ("drop", ["a/0", "a/1"])])
def test_an_answer_that_was_cut_is_trained_on_unless_it_is_to_be_dropped(
    tmp_path: Path, truncated: str, kept: list[str]
) -> None:
    run = make_run(tmp_path, truncated=truncated)
    rows = [rollout("a", 0), rollout("a", 1), rollout("a", 2, finish_reason="length")]
    others = [rollout("b", 0), rollout("b", 1, finish_reason="length")]
    write_round(
        run,
        [rows, others],
        [[verdict("a", i, float(i == 0)) for i in range(3)], [verdict("b", i, 0.0) for i in range(2)]],
    )
    build(run, 0)
    left = {"truncated": 2, "fewer_than_two_valid": 1} if truncated == "drop" else {"no_correct_answer": 2}
    assert details(run)["dropped"] == left
    assert pl.read_parquet(run.groups(0))["rollout_id"].to_list() == kept


def test_rollouts_of_two_policies_are_refused_naming_both(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_round(
        run, [[rollout("a", 0), rollout("a", 1, policy_hash="def")]], [[verdict("a", 0, 1.0), verdict("a", 1, 0.0)]]
    )
    with pytest.raises(DataError, match="abc, def"):
        build(run, 0)
    assert not run.groups(0).exists()


@pytest.mark.parametrize("changes", [{"top_p": 0.95}, {"top_k": 20}, {"temperature": 0.6}])
def test_log_probs_of_another_distribution_than_the_sampled_one_are_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    run = make_run(tmp_path)
    write_round(run, [[rollout("a", 0), rollout("a", 1, **changes)]], [[verdict("a", 0, 1.0), verdict("a", 1, 0.0)]])
    with pytest.raises(DataError, match=r"a/1 \(1 such rows\)"):
        build(run, 0)


def test_a_repeated_rollout_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_round(run, [[rollout("a", 0), rollout("a", 0)]], [[verdict("a", 0, 1.0)]])
    with pytest.raises(DataError, match="a/0 occurs more than once"):
        build(run, 0)


def test_a_problem_that_lies_in_two_parts_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_round(run, [[rollout("a", 0)], [rollout("a", 1)]], [[verdict("a", 0, 1.0)], [verdict("a", 1, 1.0)]])
    with pytest.raises(DataError, match="problem a lies in several parts"):
        build(run, 0)


def test_a_part_that_was_not_verified_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_scene(run)
    (run.verdicts(0) / "part-00002.parquet").unlink()
    with pytest.raises(DataError, match=r"2_verdicts: has no part-00002.parquet"):
        build(run, 0)


def test_a_rollout_without_prompt_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write_scene(run)
    put(run, run.prompts, tables.PROMPTS, [])
    with pytest.raises(DataError, match="has no prompt for problem mixed"):
        build(run, 0)


def test_no_rollouts_at_all_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"1_rollouts: has no part-\*.parquet"):
        build(make_run(tmp_path), 0)


def test_a_round_that_the_experiment_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"rounds 0\.\.0"):
        build(make_run(tmp_path), 1)
