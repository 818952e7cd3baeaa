"""data/README.md names every column, outcome and type that is written, and its queries run."""

import re
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest

from oapl_core import tables
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
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_there_are_at_least_three_queries_and_they_run_on_a_run(tmp_path: Path) -> None:
    run = write_synthetic_run(tmp_path, Sizes(train=9), until="verdicts")
    results = []
    for query in queries():
        assert 'run = "data/runs/demo-seed0"' in query
        scope: dict[str, object] = {}
        exec(query.replace("data/runs/demo-seed0", run.root.as_posix()), scope)
        results.append([value for value in scope.values() if isinstance(value, pl.DataFrame)])
    assert len(results) >= 3
    pass_rate, length, entropy, duplicates = (frames[0] for frames in results)
    assert len(pass_rate) == len(duplicates) == 9
    assert length["rollouts"].sum() == 9 * 4
    assert (entropy["entropy_nats"] > 0).all()


def test_pass_rates_of_the_query_do_not_count_verifier_errors(tmp_path: Path) -> None:
    run = write_synthetic_run(tmp_path, Sizes(train=9), until="verdicts")
    scope: dict[str, object] = {}
    exec(queries()[0].replace("data/runs/demo-seed0", run.root.as_posix()), scope)
    pass_rate = scope["pass_rate"]
    assert isinstance(pass_rate, pl.DataFrame)
    verdicts = pl.read_parquet(sorted(run.verdicts(0).glob("*.parquet")))
    assert verdicts["reward"].null_count() == pass_rate["verifier_errors"].sum()
    assert (pass_rate["graded"] + pass_rate["verifier_errors"]).to_list() == [4] * 9
