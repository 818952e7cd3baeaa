"""Lengths that nobody set are what the model's positions leave, once; a run keeps those that it began with."""

import json
from pathlib import Path

import pytest

from oapl_core.run_folder.opening import find
from oapl_core.run_folder.run import Run
from tests.tiny_model import write_tiny_model


def experiment(folder: Path, positions: int, more: str = "") -> Path:
    model = write_tiny_model(folder / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": positions}))
    file = folder / "x.toml"
    file.write_text(
        f'name = "x"\nruns_dir = "{folder}/runs"\nmodel = "{model}"\n{more}\n[problems]\ntrain = "a"\nheldout = "b"\n'
    )
    return file


def test_unset_lengths_fit_the_model_and_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = find(experiment(tmp_path, 40_960)).config
    assert (config.sampling.max_tokens, config.evaluation.max_tokens) == (32_000, 40_960 - 4096)
    assert config.engine.max_model_len == 40_960
    assert "evaluation.max_tokens = 36864: what the model's positions leave beside" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("positions", "more", "lengths"),
    [
        (131_072, "", (32_000, 65_536, 69_632)),
        (40_960, "evaluation.max_tokens = 1000", (32_000, 1000, 36_096)),
        (8192, "sampling.max_tokens = 512", (512, 4096, 8192)),
        (8192, "engine.max_model_len = 70000", (32_000, 65_536, 70_000)),
    ],
)
def test_what_somebody_set_stays(positions: int, more: str, lengths: tuple[int, int, int], tmp_path: Path) -> None:
    config = find(experiment(tmp_path, positions, more)).config
    assert (config.sampling.max_tokens, config.evaluation.max_tokens, config.engine.max_model_len) == lengths


def test_a_run_keeps_the_lengths_that_it_began_with(tmp_path: Path) -> None:
    run = Run.create(find(experiment(tmp_path, 40_960)).config)
    again = find(experiment(tmp_path, 20_480)).config
    assert again.evaluation.max_tokens == run.config.evaluation.max_tokens == 36_864
