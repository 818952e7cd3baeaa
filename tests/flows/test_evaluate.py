"""oapl-evaluate: what its parameters mean, and with a made-up engine: measured once, skipped while held, seen anew."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State

from flows.evaluate import evaluation_name, oapl_evaluate
from oapl_core.evaluation.cards import card
from oapl_core.evaluation.folders.wanted import default_folder, settings_of
from oapl_core.run_folder.ledger import Ledger
from oapl_core.run_folder.lock import hold
from oapl_core.settings.evaluation_folder import SetConfig
from tests.sampling_run import made_up_model, make_run, train
from tests.tiny_model import write_tokenizer
from tests.whole_run import ROOT

ENGINE = """
import pathlib, sys
from oapl_core.evaluation.folders.evaluate import evaluate_folder
from oapl_core.evaluation.folders.folder import EvaluationFolder
from tests.core.evaluation.made_up_verifier import MadeUpVerifier
from tests.sampling_run import MadeUpSampler
assert sys.argv[2] == "oapl_core.evaluation.folders.evaluate"
evaluate_folder(EvaluationFolder.open(pathlib.Path(sys.argv[3])), MadeUpSampler, MadeUpVerifier(lambda _: 0.5))
"""


@pytest.fixture
def start(tmp_path: Path) -> dict[str, Any]:
    """A model on three problems, by an interpreter that plays the engine."""
    write_tokenizer(made_up_model(tmp_path / "model", 1.0))
    rows = [{"problem_id": f"p{i}", "kind": "math", "statement": f"{i} + 1?", "answer": str(i + 1)} for i in range(3)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "engine.py").write_text(ENGINE)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" "{tmp_path}/engine.py" "$@"\n')
    python.chmod(0o755)
    overrides = ("prompt_style=plain", "samples=4", "max_tokens=12", "max_prompt_tokens=64", f"engine_python={python}")
    problems = SetConfig(path=tmp_path / "sums.jsonl")
    return {"models": (str(tmp_path / "model"),), "problems": problems, "overrides": overrides, "to": tmp_path / "e"}


def test_overrides_reach_every_setting_and_the_engine_takes_what_is_asked(start: dict[str, Any]) -> None:
    asked = {"path": start["problems"].path}
    config = settings_of(start["models"], asked, [*start["overrides"], "engine.max_num_seqs=3", "ks=[1, 4]"])
    assert (config.samples, config.ks, config.prompt_style) == (4, (1, 4), "plain")
    assert (config.engine.max_model_len, config.engine.max_num_seqs) == (76, 3)
    assert settings_of(start["models"], asked, ["engine.max_model_len=99999"]).engine.max_model_len == 99999
    assert default_folder(config) == Path("data/evaluations/sums-model")


def test_a_runs_newest_epoch_has_a_folder_of_its_own(tmp_path: Path) -> None:
    run = make_run(tmp_path, made_up_model(tmp_path / "model"))
    (tmp_path / "sums.jsonl").touch()
    train(run)
    config = settings_of([str(run.root)], {"path": tmp_path / "sums.jsonl"})
    assert default_folder(config).name == "sums-sampled-seed3-round-1-epoch-3"


def test_a_flow_run_is_named_by_models_and_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, name in [
        ({}, "demo-seed0:base and 1 more on heldout"),
        ({"models": ["m"], "problems": {"name": "aime25"}}, "m on aime25"),
    ]:
        monkeypatch.setattr("prefect.runtime.flow_run.parameters", given, raising=False)
        assert evaluation_name() == name


def measured(start: dict[str, Any]) -> State[Any]:
    return oapl_evaluate(**start, return_state=True)


def starts(folder: Path) -> int:
    return len(Ledger(folder / "ledger.jsonl").stages())


@pytest.mark.slow
@pytest.mark.usefixtures("prefect")
def test_it_measures_once_is_skipped_while_held_and_sees_a_new_model(start: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "e"
    state = measured(start)
    assert state.is_completed() and "card.md: model: avg@4" in str(state.message)
    before = card.read(folder / "card.json")["results"]["model"]["policy_hash"]
    assert measured(start).message == state.message and starts(folder) == 1, "nothing is measured twice"
    write_tokenizer(made_up_model(tmp_path / "model", 2.0))
    assert measured(start).is_completed() and starts(folder) == 2
    assert card.read(folder / "card.json")["results"]["model"]["policy_hash"] != before
    (tmp_path / "sums.jsonl").unlink()
    with pytest.raises(Exception, match="no such problem set"):
        oapl_evaluate(**start)


@pytest.mark.slow
@pytest.mark.usefixtures("prefect")
def test_of_two_starts_one_is_skipped(start: dict[str, Any], tmp_path: Path) -> None:
    import contextvars
    import threading

    found: list[State[Any]] = []
    with hold(tmp_path / "e"):  # a thread with a context of its own does not hold it
        thread = threading.Thread(target=lambda: contextvars.Context().run(lambda: found.append(measured(start))))
        thread.start()
        thread.join()
    assert [(state.name, state.is_cancelled()) for state in found] == [("Skipped", True)]
