"""The example on the real engine, sandbox and loss, slow: whole, and on a base model of a few seconds."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from examples import one_round
from oapl_core.pretraining.pretrain import pretrain
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import load_experiment
from tests.tiny_model import write_tiny_model

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="the engine is not installed")

# Two passes over a quarter of the solutions: a model that is correct now and then, which is all that a group needs.
SMALL = """
import sys
from pathlib import Path
from examples import one_round
from oapl_core.pretraining.pretrain import build, read_solved
from oapl_core.settings.pretrain import PretrainConfig

solutions, base = one_round.DEMO / "solutions.jsonl", Path(sys.argv[1])
build(read_solved(solutions)[::4], PretrainConfig(solutions=solutions, epochs=2), 0, base)
one_round.PROBLEMS = 48
before, after = one_round.main(base)
assert 0 <= before <= 1 and 0 <= after <= 1
"""


def printed(root: Path, *command: str) -> str:
    result = subprocess.run([sys.executable, *command], cwd=root, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def shares(text: str) -> list[float]:
    return [float(share) for share in re.findall(r"([\d.]+)%", text)]


def test_the_base_model_is_the_one_that_a_run_of_the_demo_made(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[Path] = []

    def build(_solved: object, _config: object, _seed: int, folder: Path) -> None:
        made.append(write_tiny_model(folder))

    monkeypatch.setattr("oapl_core.pretraining.pretrain.build", build)
    monkeypatch.chdir(root)
    places = [f"runs_dir={tmp_path}/runs", f"cache_dir={tmp_path}/cache"]
    pretrain(Run.create(load_experiment(root / "deployments/experiments/demo.toml", places)))
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    assert one_round.base_model(tmp_path / "cache") == made[0]
    assert len(made) == 1, "it is not made again"
    assert capsys.readouterr().out.startswith("the demo's base model: taken from ")


@pytest.mark.slow
def test_it_samples_judges_and_steps(root: Path, tmp_path: Path) -> None:
    text = printed(root, "-c", SMALL, str(tmp_path / "base"))
    assert "384 answers sampled" in text
    losses = [float(loss) for loss in re.findall(r"step .*: loss ([\d.]+)", text)]
    assert len(losses) >= 2
    # r - V is within -1 and 1; were engine and trainer of different minds, the first squared residual would be larger
    assert 0 < losses[0] < 1
    assert "held-out after" in text


@pytest.mark.slow
def test_one_round_improves_the_demos_base_model_on_held_out_problems(root: Path) -> None:
    text = printed(root, "examples/one_round.py")
    _, held_out, after, before = shares(text)
    assert before == held_out
    assert after > before + 15


def test_it_is_read_on_two_screens(root: Path) -> None:
    lines = (root / "examples/one_round.py").read_text().splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 105
