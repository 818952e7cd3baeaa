"""examples/shop: its environment, its files, and (slowly) the whole run that its README promises."""

import json
import pickle
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from examples.shop import generate
from examples.shop.shop import Shop
from oapl_core.environments.making import schemas
from oapl_core.environments.protocol import Action, Environment
from oapl_core.environments.syntax import calls
from oapl_core.model_files.prompt_templates import check
from oapl_core.run_folder.run import Run
from oapl_core.run_folder.run_record import RunRecord
from oapl_core.settings.experiment_file import load_experiment
from oapl_extras.round_pages.joined import joined
from tests.architecture.sources import ROOT
from tests.whole_run import called, oapl

FOLDER = ROOT / "examples" / "shop"


def problem() -> dict[str, Any]:
    row: dict[str, Any] = json.loads((FOLDER / "train.jsonl").read_text().splitlines()[0])
    return row | {"info": json.dumps(row["info"])}  # as problems.parquet has it


def test_the_shop_answers_and_tells_the_model_what_it_did_wrong() -> None:
    shop = Shop()
    shop.reset(problem(), 0)
    shop = pickle.loads(pickle.dumps(shop))
    assert isinstance(shop, Environment)
    prices = json.loads(problem()["info"])["prices"]
    said = "".join(f"<price>{item}</price>" for item in [*prices, "unicorn"])
    seen = shop.step(Action(said, calls(said, "tags", shop.tools())))
    assert [result.text for result in seen.results] == [*map(str, prices.values()), "Error: there is no 'unicorn' here"]
    assert [result.is_error for result in seen.results] == [False, False, True]
    assert shop.step(Action("\\boxed{7}")).is_done


def test_the_experiment_can_be_planned_and_its_tool_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    experiment = load_experiment(FOLDER / "shop.toml")
    assert experiment.environment
    (schema,) = schemas(experiment.environment)
    assert schema["function"]["name"] == "price"
    done = called("plan", FOLDER / "shop.toml")
    assert "128 training" in done.stdout, done.stderr
    check((FOLDER / "prompt.jinja").read_text(), FOLDER / "prompt.jinja")


def test_the_files_are_what_the_generator_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "FOLDER", tmp_path)
    generate.main()
    for file in sorted(tmp_path.iterdir()):
        assert file.read_text() == (FOLDER / file.name).read_text(), file.name
    statements = [
        {json.loads(line)["statement"] for line in (FOLDER / f"{split}.jsonl").read_text().splitlines()}
        for split in ("train", "heldout")
    ]
    assert not statements[0] & statements[1]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_whole_run(tmp_path: Path) -> None:
    oapl(["run", str(FOLDER / "shop.toml"), f"runs_dir={tmp_path}", f"cache_dir={tmp_path}/cache"])
    rows = joined(RunRecord(Run.open(tmp_path / "shop-seed0")), 1).collect()
    assert rows["outcome"].value_counts().filter(pl.col("outcome") == "verifier_error").is_empty()
    asked, guessed = rows.filter(pl.col("calls") > 0), rows.filter(pl.col("calls") == 0)
    assert len(asked) > len(rows) / 5, "one of three demonstrations asks"
    rewards = [float(some["reward"].sum()) / len(some) for some in (asked, guessed)]
    assert rewards[0] > 2 * rewards[1], "a price is known to who asks"
