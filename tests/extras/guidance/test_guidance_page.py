"""docs/extras/guidance.md: its example runs, and its tables name what there is."""

import re
import tomllib
from pathlib import Path

import pytest

from oapl_core import tables
from oapl_core.groups.build import build
from oapl_core.objectives import shipped
from oapl_core.rollouts.generate import generate
from oapl_core.verdicts.verify import verify
from oapl_extras.guidance.demonstrated_prefixes import WithPrefixes
from oapl_extras.guidance.with_demonstrations import WithDemonstrations
from tests.architecture.sources import ROOT
from tests.extras.guidance.guided_run import guided_run
from tests.sampling_run import MadeUpSampler, train
from tests.tiny_model import write_tiny_model

PAGE = (ROOT / "docs/extras/guidance.md").read_text(encoding="utf-8")


def block(kind: str, place: int = 0) -> str:
    return str(re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)[place])


def first_cells(head: str, place: int = 1) -> list[str]:
    """First cells of the rows of a table with that head, of which there may be several on the page."""
    lines = PAGE.split(f"| {head} |")[place].split("\n\n")[0].splitlines()[2:]
    return [line.split("|")[1] for line in lines]


def test_its_example_trains_on_groups_that_a_demonstration_keeps(tmp_path: Path) -> None:
    said = tomllib.loads(block("toml"))
    (tmp_path / "worked.jsonl").write_text(block("json"))
    said["rounds"][0]["rows"]["with_demonstrations"] = str(tmp_path / "worked.jsonl")
    run = guided_run(tmp_path, write_tiny_model(tmp_path / "model"), {}, **said)
    generate(run, 0, MadeUpSampler)
    verify(run, 0)
    build(run, 0)
    rows = tables.read_table(run.groups(0), tables.GROUPS).to_pylist()
    right = [row for row in rows if row["correct"]]
    assert [(row["problem_id"], row["behavior_logprobs"]) for row in right] == [("sum-0", None), ("sum-1", None)]


@pytest.mark.slow
def test_its_second_example_begins_answers_to_what_the_first_round_left_unsolved(tmp_path: Path) -> None:
    said = tomllib.loads(block("toml", 1))
    (tmp_path / "stored.jsonl").write_text(block("json"))
    said["rounds"][1]["rows"]["with_prefixes"] = str(tmp_path / "stored.jsonl")
    run = guided_run(tmp_path, write_tiny_model(tmp_path / "model"), {}, **said)
    generate(run, 0, MadeUpSampler)
    verify(run, 0)
    train(run, (0,))
    generate(run, 1, MadeUpSampler)
    parts = sorted(run.rollouts(1).glob("part-*.parquet"))
    rows = [row for part in parts for row in tables.read_table(part, tables.ROLLOUTS).to_pylist()]
    assert {row["problem_id"] for row in rows if row["loss_mask"]} == {"sum-0", "sum-1"}
    assert all(not row["loss_mask"][0] and row["loss_mask"][-1] for row in rows if row["loss_mask"])


def test_its_tables_have_every_key_and_every_objective_that_can_do_without_b() -> None:
    assert [cell.strip(" `") for cell in first_cells("key of `rows`")] == list(WithDemonstrations.model_fields)
    prefixes = re.findall(r"`(\w+)`", " ".join(first_cells("key of `rows`", 2)))
    assert prefixes == list(WithPrefixes.model_fields)
    named = set(re.findall(r"`(\w+)`", " ".join(first_cells("objective"))))
    assert named == {name for name, kind in shipped().items() if not kind.needs_behavior}
