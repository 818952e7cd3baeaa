"""`oapl evaluate`: which checkpoint a word means, what is refused, and a real evaluation with its repetition."""

import json
from pathlib import Path

import pytest

from deployments.commands.evaluate import beside, measure_or_repeat
from oapl_core.errors import ConfigError
from oapl_core.evaluation.cards.card import read
from oapl_core.evaluation.evaluate import evaluate as evaluate_run
from oapl_core.evaluation.folders.folder import parse
from oapl_core.evaluation.folders.wanted import model_of, settings_of
from oapl_core.run_folder.run import Run
from tests.core.evaluation.made_up_verifier import MadeUpVerifier
from tests.sampling_run import MadeUpSampler, made_up_model, make_run, train
from tests.tiny_model import write_tiny_model
from tests.whole_run import kill_when, oapl

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    made = make_run(tmp_path, made_up_model(tmp_path / "model"))
    train(made)
    return made


def test_a_model_folder_is_called_as_its_folder_or_as_its_label(tmp_path: Path) -> None:
    folder = made_up_model(tmp_path / "Qwen")
    assert model_of(str(folder)) == {"label": "Qwen", "path": str(folder)}
    assert model_of(f"mine={folder}") == {"label": "mine", "path": str(folder)}
    odd = made_up_model(tmp_path / "a=b")
    assert model_of(str(odd))["label"] == "a=b"


def test_a_runs_checkpoints_have_names(run: Run) -> None:
    assert model_of(f"{run.root}:base")["path"] == run.base_model()
    assert model_of(f"{run.root}:round_00")["path"] == run.checkpoint(0, 1)
    assert model_of(f"{run.root}:round_01/epoch_02")["path"] == run.checkpoint(1, 2)
    assert model_of(f"x={run.root}:round_01/epoch_02")["label"] == "x"
    assert model_of(f"{run.root}:round_01")["label"] == "sampled-seed3 round 1 epoch 3"


def test_a_run_alone_is_its_newest_epoch_and_after_its_evaluation_the_chosen_one(run: Run) -> None:
    found = model_of(str(run.root))
    assert found["path"] == run.checkpoint(1, 3)
    assert found["origin"] == "the last epoch, nothing was chosen"
    evaluate_run(run, MadeUpSampler, MadeUpVerifier(lambda _: 1.1))
    found = model_of(str(run.root))
    assert found["path"] == run.checkpoint(1, 1)
    assert found["origin"] == "chosen on validation problems"


def test_answers_that_nobody_bounded_are_what_the_smallest_model_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small, large = (made_up_model(tmp_path / name) for name in ("small", "large"))
    for folder, positions in ((small, 256), (large, 1 << 20)):
        known = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(known | {"max_position_embeddings": positions}))
    problems = {"path": ROOT / "data/demo/heldout.jsonl"}
    both = settings_of([str(large), str(small)], problems, ["max_prompt_tokens=160"])
    assert (both.max_tokens, both.engine.max_model_len) == (96, 256)
    line = "max_tokens = 96: what the models' positions leave beside max_prompt_tokens = 160"
    assert capsys.readouterr().out == f"progress | {line}\n"
    assert settings_of([str(large)], problems).max_tokens == 65536
    assert settings_of([str(small)], problems, ["max_prompt_tokens=160", "max_tokens=12"]).max_tokens == 12
    assert capsys.readouterr().out == ""
    with pytest.raises(ConfigError, match="small has 256; give fewer, for example max_prompt_tokens=128"):
        settings_of([str(large), str(small)], problems)


def test_an_epoch_chosen_on_what_is_reported_carries_that_in_its_name(tmp_path: Path) -> None:
    forced = {"choose_on": "heldout", "force": True}
    run = make_run(tmp_path, made_up_model(tmp_path / "model"), evaluation=forced)
    train(run)
    evaluate_run(run, MadeUpSampler, MadeUpVerifier(lambda _: 1.1))
    found = model_of(str(run.root))
    assert "chosen on the held-out problems that are reported" in found["label"]
    assert found["origin"] == "chosen on the held-out problems that are reported"


def test_a_run_without_checkpoints_has_its_base_model(tmp_path: Path) -> None:
    run = make_run(tmp_path, made_up_model(tmp_path / "model"))
    with pytest.raises(ConfigError, match="has no checkpoint yet"):
        model_of(str(run.root))


@pytest.mark.parametrize("place", ["round_07", "epoch_01", "round_00/epoch"])
def test_a_place_that_no_run_has_is_refused(run: Run, place: str) -> None:
    with pytest.raises(ConfigError, match="write base, round_00 or"):
        model_of(f"{run.root}:{place}")


@pytest.mark.parametrize(
    ("words", "name", "complaint"),
    [
        ([], "x.jsonl", "which model"),
        (["model"], None, "say what to evaluate on with --set"),
        (["nowhere"], "x.jsonl", "neither a model folder"),
        (["model", "problems.window=2024-01-01:"], "x.jsonl", "problems.window is for a set"),
        (["model"], "livecodebenhc", "there is no problem set"),
        (["model", "problems.window=20:24"], "livecodebench", "window .20:24.: write FIRST:END"),
        (["model", "problems.release=v99"], "livecodebench", "no release"),
        (["model"], "x.jsonl", "no such problem set"),
        (["model", "ks=1;2"], "x.jsonl", "`ks`: Input should be a list"),
        (["model", "ks=[1,4]", "samples=2"], "x.jsonl", "pass@4 needs"),
        (["model", "engine.max_num_seq=3"], "x.jsonl", "engine.max_num_seq"),
        (["model", "prompt_style=odd"], "x.jsonl", "prompt_style"),
        (["model", "problems.limit=0"], "x.jsonl", "problems.limit"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    name: str | None,
    complaint: str,
) -> None:
    made_up_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=complaint) as error:
        measure_or_repeat(words, name, None, tmp_path / "e")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "e").exists()


def test_a_repetition_lies_beside_its_original_but_not_in_a_run(run: Run) -> None:
    evaluate_run(run, MadeUpSampler, MadeUpVerifier(lambda _: 0.5))
    config = parse(read(run.card())["settings"], "test")
    assert beside(run.card(), config) == Path("data/evaluations/sampled-seed3-base-and-2-more-again")
    assert beside(Path("there/sums/card.json"), config) == Path("there/sums-again")


def test_a_card_takes_no_other_settings(tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text(json.dumps({"card": 1, "settings": {"models": [{}]}}))
    with pytest.raises(ConfigError, match="not with samples"):
        measure_or_repeat(["samples=3"], None, tmp_path / "card.json", None)
    with pytest.raises(ConfigError, match="not with --set"):
        measure_or_repeat([], "x.jsonl", tmp_path / "card.json", None)
    with pytest.raises(ConfigError, match="is of 1 models, 2 are given"):
        measure_or_repeat(["a", "b"], None, tmp_path / "card.json", None)


@pytest.mark.slow
def test_an_evaluation_and_its_repetition_agree_exactly_and_another_model_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real engine, real sandbox: two checkpoints in one engine, then the card again with other batches."""
    models = [write_tiny_model(tmp_path / name, seed) for name, seed in (("one", 1), ("two", 2))]
    name = str(ROOT / "data/demo/heldout.jsonl")
    asked = ["prompt_style=plain", "samples=3", "max_tokens=24", "max_prompt_tokens=128", "problems.limit=6"]
    words = [*map(str, models), *asked, "engine.kv_cache_gib=0.25"]
    assert measure_or_repeat(words, name, None, tmp_path / "first") == 0
    card = tmp_path / "first" / "card.json"
    capsys.readouterr()
    again = ["engine.max_num_seqs=2"]
    assert measure_or_repeat(again, None, card, tmp_path / "second") == 0
    said = capsys.readouterr().out
    assert said.count("agrees exactly: 18 answers and verdicts are the same") == 2
    content = json.loads(card.read_text())
    assert content["ran"]["dtype"] == ["float32"]
    assert content["ran"]["engine"][0].startswith("vllm ")
    assert content["ran"]["sandbox_level"][0] in ("full", "fallback")
    for result in content["results"].values():
        result["mean_reward"] = 0.9
        result["answers_sha256"] = "of others"
    card.write_text(json.dumps(content))
    assert measure_or_repeat(again, None, card, tmp_path / "second") == 1
    assert capsys.readouterr().out.count("does not agree") == 2


@pytest.mark.slow
def test_a_killed_evaluation_goes_on_where_it_was_and_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    model, place = write_tiny_model(tmp_path / "one"), tmp_path / "killed"
    arguments = [
        "evaluate",
        str(model),
        "--set",
        str(ROOT / "data/demo/heldout.jsonl"),
        "prompt_style=plain",
        "samples=4",
    ]
    arguments += ["max_tokens=24", "max_prompt_tokens=256", "engine.kv_cache_gib=0.25", "--to", str(place)]
    kill_when(arguments, tmp_path / "log", lambda: any(place.glob("answers/one/1_rollouts/part-0*.parquet")))
    kept = {path: path.stat().st_mtime_ns for path in place.glob("answers/one/1_rollouts/part-0*.parquet")}
    assert 1 <= len(kept) < 3
    oapl(arguments)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    again = oapl(["evaluate", "--card", str(place / "card.json"), "--to", str(tmp_path / "again")])
    assert "one: agrees exactly: 600 answers and verdicts are the same" in again
