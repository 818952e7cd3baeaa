"""Every column that is written is on the page of columns, every outcome in data/README.md; docs/queries.md runs."""

import re
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from docs.site import columns_page as columns
from docs.site.columns_page import TABLES, columns_page
from oapl_core import tables
from oapl_core.run_folder.run import Run
from oapl_core.verdicts.outcomes import Outcome
from tests.synthetic_run import Sizes, write_synthetic_run

ROOT = Path(__file__).parents[3]
README, QUERIES = ROOT / "data" / "README.md", ROOT / "docs" / "queries.md"
PAGE = columns_page()


def section(page: str, title: str) -> str:
    return page.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    return [[c.strip() for c in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")]


@pytest.mark.parametrize("name", TABLES)
def test_every_column_is_explained_in_order_with_its_type(name: str) -> None:
    found = rows(section(PAGE, name.capitalize()))
    assert [row[0].strip("`") for row in found] == [column for column, _ in TABLES[name]]
    assert all(len(row) == 5 and row[1] and row[3] and row[4] for row in found)


def test_types_are_named_as_a_reader_knows_them() -> None:
    kinds = {row[1] for name in TABLES for row in rows(section(PAGE, name.capitalize()))}
    assert {"string", "large_string", "bool", "timestamp[us, tz=UTC]", "list&lt;int32>"} <= kinds
    assert "list&lt;struct&lt;input, output>>" in kinds, "of a struct the names of its parts"


def test_every_table_of_the_schema_module_is_documented() -> None:
    constants = {name for name, value in vars(tables).items() if name.isupper() and isinstance(value, tuple)}
    # TURNS and CARRIED are columns that tables share
    assert constants - {"TURNS", "CARRIED"} | {"DRAWS"} == {name.upper() for name in TABLES}


@pytest.mark.parametrize("change", ["[prompts.novelty]\nmeaning = 'of no column'\n", None])
def test_a_column_without_a_meaning_stops_the_site(
    change: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = columns.MEANINGS.read_text("utf-8")
    broken = text + change if change else text.replace("[prompts.prompt]", "[prompts.renamed]")
    (tmp_path / "columns.toml").write_text(broken, "utf-8")
    monkeypatch.setattr(columns, "MEANINGS", tmp_path / "columns.toml")
    with pytest.raises(ValueError, match=r"prompts\.novelty" if change else r"prompts\.prompt', 'prompts\.renamed"):
        columns_page()


def test_every_outcome_is_explained_with_its_reward() -> None:
    documented = {
        row[0].strip("`"): row[1]
        for row in rows(section(README.read_text("utf-8"), "Verdicts").split("### Outcomes")[1])
    }
    assert documented == {o.value: "null" if o.reward is None else f"{o.reward:.0f}" for o in Outcome}


def queries() -> Sequence[str]:
    return re.findall(r"```python\n(.*?)```", QUERIES.read_text("utf-8"), re.DOTALL)


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
