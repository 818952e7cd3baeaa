"""Rows of several turns: they come back as written, old files open, and what is wrong with one is said."""

import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from oapl_core.tables import ROLLOUTS, TURNS, UNUSED, read_table, write_table
from oapl_core.turns import has_turns
from oapl_core.turns.counts import counts_of_rows, turn_counts
from oapl_core.turns.rows import fault, prompt_hash
from tests.synthetic_run import Sizes, write_synthetic_run

PROMPT = [5, 6, 7]
CALL = {"turn": 0, "name": "python", "arguments": '{"code": "1+1"}', "result": "2", "is_error": False, "seconds": 0.25}


def plain_rows(folder: Path) -> list[dict[str, Any]]:
    run = write_synthetic_run(folder, Sizes(train=3), until="rollouts")
    rows: list[dict[str, Any]] = read_table(min(run.rollouts(0).glob("*.parquet")), ROLLOUTS).to_pylist()
    return rows


def trajectory(row: dict[str, Any]) -> dict[str, Any]:
    """``row`` with two turns: the model samples 10 11, the environment answers 20 21 22, the model samples 12."""
    return row | {
        "response_ids": [10, 11, 20, 21, 22, 12],
        "logprobs": [-1.0, -0.5, 0.0, 0.0, 0.0, -0.25],
        "loss_mask": [True, True, False, False, False, True],
        "turn_starts": [0, 5],
        "prompt_hashes": [prompt_hash(PROMPT), prompt_hash([*PROMPT, 10, 11, 20, 21, 22])],
        "tool_calls": [CALL],
        "turn_rewards": [0.0, 1.0],
        "environment": "python",
    }


def test_trajectories_come_back_and_columns_that_a_row_leaves_out_are_null(tmp_path: Path) -> None:
    plain = plain_rows(tmp_path / "run")
    rows, path, single = [trajectory(plain[0]), plain[1]], tmp_path / "turns.parquet", tmp_path / "single.parquet"
    write_table(path, ROLLOUTS, rows)
    write_table(single, ROLLOUTS, [{name: row[name] for name in row.keys() - UNUSED} for row in plain])
    assert read_table(path, ROLLOUTS).to_pylist() == rows
    assert read_table(single, ROLLOUTS).to_pylist() == plain
    assert plain[0].keys() >= {"routes", *dict(TURNS)}
    assert (has_turns(path), has_turns(single)) == (True, False)
    with pytest.raises(AssertionError, match="row has columns"):
        write_table(path, ROLLOUTS, [{name: value for name, value in plain[0].items() if name != "text"}])


def test_a_sound_row_has_no_fault() -> None:
    row = trajectory({})
    assert fault(row, PROMPT) is None
    ends_with_a_tool = row | {"response_ids": row["response_ids"][:5], "logprobs": row["logprobs"][:5]}
    ends_with_a_tool |= {"loss_mask": row["loss_mask"][:5], "turn_starts": [0], "turn_rewards": [0.0]}
    assert fault(ends_with_a_tool | {"prompt_hashes": row["prompt_hashes"][:1]}, PROMPT) is None
    single = dict.fromkeys(name for name, _ in TURNS)
    assert fault(row | single | {"logprobs": [-1.0] * 6}, PROMPT) is None
    assert fault(row | single | {"response_ids": [], "logprobs": []}, PROMPT) is None


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"loss_mask": [True] * 5}, "5 entries of loss_mask for 6 tokens"),
        ({"logprobs": [-1.0, -0.5, 0.0, -0.1, 0.0, -0.25]}, "log-prob at a token of the environment"),
        ({"turn_starts": [1, 5]}, "do not follow each other"),
        ({"turn_starts": [0, 6]}, "do not follow each other"),
        ({"turn_starts": [0, 4]}, r"outside of its turns \(turn 1\)"),
        ({"loss_mask": [True, True, False, True, False, True], "logprobs": None}, r"outside of its turns \(turn 0\)"),
        ({"response_ids": [10, 9, 20, 21, 22, 12]}, "another prompt in turn 1 "),
        ({"prompt_hashes": [prompt_hash(PROMPT)]}, "another prompt in turn 1 "),
        ({"tool_calls": [CALL | {"turn": 2}]}, "a turn that it does not have"),
        ({"turn_rewards": [1.0]}, "1 rewards for 2 turns"),
    ],
)
def test_what_is_wrong_with_a_row_is_said(changed: dict[str, Any], complaint: str) -> None:
    assert re.search(complaint, str(fault(trajectory({}) | changed, PROMPT)))


def test_a_failure_of_the_environment_is_no_call_of_the_model(tmp_path: Path) -> None:
    plain, path = plain_rows(tmp_path / "run"), tmp_path / "turns.parquet"
    failure = CALL | {"turn": 1, "name": "python", "result": "gone", "is_error": True, "seconds": 9.0}
    wrong = CALL | {"is_error": True}
    rows = [
        trajectory(plain[0]) | {"finish_reason": "error", "tool_calls": [CALL, wrong, failure]},
        trajectory(plain[1]) | {"finish_reason": "error", "tool_calls": []},
        trajectory(plain[2]) | {"finish_reason": "stop", "tool_calls": [CALL]},
        plain[0],
    ]
    write_table(path, ROLLOUTS, rows)
    counted = turn_counts([path])
    assert counted is not None
    assert (counted.calls, counted.failed, counted.seconds) == (3, 1, 0.75)
    frame = pl.read_parquet(path).select(**counts_of_rows())
    assert frame["calls"].to_list() == [2, 0, 1, None]
    assert frame["failed_calls"].to_list()[:3] == [1, 0, 0]


def test_another_first_prompt_is_found() -> None:
    assert "in turn 0 " in str(fault(trajectory({}), [5, 6, 8]))
