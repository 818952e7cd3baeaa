"""data/README.md names every column, outcome and type that is written, and its queries run."""

import re
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from oapl_core import tables
from oapl_core.run_folder.run import Run
from oapl_core.verdicts.outcomes import Outcome
from tests.synthetic_run import Sizes, write_synthetic_run

README = Path(__file__).parents[3] / "data" / "README.md"
TABLES = {
    "Problems": tables.PROBLEMS,
    "Prompts": tables.PROMPTS,
    "Rollouts": tables.ROLLOUTS,
    "Verdicts": tables.VERDICTS,
    "Audits": tables.AUDITS,
    "Groups": tables.GROUPS,
    "References": tables.REFERENCES,
    "Mismatches": tables.MISMATCHES,
    "Evaluations": tables.EVALUATIONS,
}
TYPES = {
    "str": "string",
    "text": "large_string",
    "int32": "int32",
    "int64": "int64",
    "float32": "float32",
    "ids": "list<int32>",
    "logprobs": "list<float32>",
    "time": "timestamp[us, UTC]",
    "tests": "list<struct<input, output>>",
    "bool": "bool",
    "bytes": "large_binary",
    "mask": "list<bool>",
    "int64s": "list<int64>",
    "float64s": "list<float64>",
    "tool_calls": "list<struct<turn, name, arguments, result, is_error, seconds>>",
}


def section(title: str) -> str:
    return README.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    return [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("title", TABLES)
def test_every_column_is_explained_in_order_with_its_type(title: str) -> None:
    documented = [(row[0].strip("`"), row[1]) for row in rows(section(title).split("\n### ")[0])]
    assert documented == [(name, TYPES[kind]) for name, kind in TABLES[title]]


@pytest.mark.parametrize("title", TABLES)
def test_every_column_has_a_meaning_and_says_when_it_is_null(title: str) -> None:
    for row in rows(section(title).split("\n### ")[0]):
        assert len(row) == 5
        assert row[3], row
        assert row[4], row


def test_every_table_of_the_schema_module_is_documented() -> None:
    constants = {name for name, value in vars(tables).items() if name.isupper() and isinstance(value, tuple)}
    assert constants == {title.upper() for title in TABLES}


def test_every_outcome_is_explained_with_its_reward() -> None:
    documented = {row[0].strip("`"): row[1] for row in rows(section("Verdicts").split("### Outcomes")[1])}
    assert documented == {o.value: "null" if o.reward is None else f"{o.reward:.0f}" for o in Outcome}


def queries() -> Sequence[str]:
    return re.findall(r"```python\n(.*?)```", section("Queries a person would want"), re.DOTALL)


def answers(run: Run) -> dict[str, pl.DataFrame]:
    """Each query run against ``run``: the data frames that it makes, by name."""
    found: dict[str, pl.DataFrame] = {}
    for query in queries():
        assert 'run = "data/runs/demo-seed0"' in query
        scope: dict[str, object] = {}
        exec(query.replace("data/runs/demo-seed0", run.root.as_posix()), scope)
        made = {name: value for name, value in scope.items() if isinstance(value, pl.DataFrame)}
        assert len(made) == 1, "a query answers one question"
        assert not made.keys() & found.keys()
        found.update(made)
    return found


def audit(run: Run) -> str:
    """Write an audit that contradicts the verifier in one rollout; returns its id."""
    verdicts = pl.read_parquet(sorted(run.verdicts(0).glob("*.parquet")))
    passed = verdicts.filter(pl.col("outcome") == "passed")["rollout_id"].to_list()
    rows = [
        {
            "rollout_id": rollout_id,
            "problem_id": rollout_id.split("/")[0],
            "outcome": "wrong_answer" if rollout_id == passed[0] else "passed",
            "tests_run": 6,
            "first_failing_test": 5 if rollout_id == passed[0] else None,
            "excerpt": "3" if rollout_id == passed[0] else None,
            "wall_s": 0.2,
        }
        for rollout_id in passed[:3]
    ]
    with run.writing(run.audit(0), {}, {}) as draft:
        draft.rows = tables.write_table(draft.path, tables.AUDITS, rows)
    return str(passed[0])


def test_every_query_runs_and_answers_its_question(tmp_path: Path) -> None:
    run = write_synthetic_run(tmp_path, Sizes(train=9), until="training")
    contradicted = audit(run)
    found = answers(run)
    assert found.keys() == {
        *("pass_rate", "length", "entropy", "duplicates", "outcomes", "truncation", "slowest", "mismatch"),
        "disagreements",
    }
    for name in ("pass_rate", "duplicates", "truncation"):
        assert len(found[name]) == 9, name
    assert found["length"]["rollouts"].sum() == found["outcomes"]["rollouts"].sum() == 9 * 4
    assert (found["entropy"]["entropy_nats"] > 0).all()
    shares = found["outcomes"].group_by("kind").agg(pl.col("share").sum())
    assert shares["share"].to_list() == pytest.approx([1.0] * 3)
    assert found["slowest"]["cpu_s"].is_sorted(descending=True)
    assert found["disagreements"]["rollout_id"].to_list() == [contradicted]
    assert found["disagreements"]["answer"].to_list() == ["print(1)"]


def test_the_mismatch_of_the_query_is_over_tokens(tmp_path: Path) -> None:
    run = write_synthetic_run(tmp_path, Sizes(train=9), until="training")
    audit(run)
    rows = pl.read_parquet(next(run.checkpoints(0).glob("engine_mismatch.parquet")))
    mismatch = answers(run)["mismatch"].row(0, named=True)
    weighted = sum(row["mean_difference"] * row["response_tokens"] for row in rows.iter_rows(named=True))
    assert mismatch["mean_difference"] == pytest.approx(weighted / sum(rows["response_tokens"]))
    largest = max(rows.iter_rows(named=True), key=lambda row: abs(row["sum_difference"]))
    assert mismatch["worst"] == largest["rollout_id"]
    assert mismatch["rollouts"] == len(rows)
    assert mismatch["drifted"] == len(rows) - rows["first_drift"].null_count()


def test_pass_rates_of_the_query_do_not_count_verifier_errors(tmp_path: Path) -> None:
    run = write_synthetic_run(tmp_path, Sizes(train=9), until="verdicts")
    scope: dict[str, object] = {}
    exec(queries()[0].replace("data/runs/demo-seed0", run.root.as_posix()), scope)
    pass_rate = scope["pass_rate"]
    assert isinstance(pass_rate, pl.DataFrame)
    verdicts = pl.read_parquet(sorted(run.verdicts(0).glob("*.parquet")))
    assert verdicts["reward"].null_count() == pass_rate["verifier_errors"].sum()
    assert (pass_rate["judged"] + pass_rate["verifier_errors"]).to_list() == [4] * 9
