"""examples/package: a package outside of this tree, really installed, whose names work wherever a name is chosen."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from oapl_core import plugins
from oapl_core.run_folder.run import METRICS_FILE
from oapl_core.tracking.figures import TRAINING
from tests.core.training.made_round import made_groups, make_run, train_command, write_groups
from tests.synthetic_run import write_synthetic_run
from tests.tiny_model import write_tiny_model
from tests.whole_run import ROOT


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with the example in it, installed by uv without the network."""
    folder = tmp_path_factory.mktemp("installed")
    # building leaves files beside the sources
    source = shutil.copytree(ROOT / "examples" / "package", folder / "source")
    uv = Path(sys.executable).with_name("uv")
    options = ["--quiet", "--offline", "--no-deps", "--no-build-isolation", "--python", sys.executable]
    subprocess.run([uv, "pip", "install", *options, "--target", folder / "packages", source], check=True)
    return folder / "packages"


@pytest.fixture
def environment(installed: Path) -> dict[str, str]:
    """Variables of processes that find the package."""
    paths = [str(installed), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def oapl(environment: dict[str, str], folder: Path, *words: object) -> str:
    """Call `oapl` in a folder outside of the tree; it must succeed."""
    command = [sys.executable, "-m", "deployments.cli", *map(str, words)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_problem_set_is_imported_by_name(environment: dict[str, str], tmp_path: Path) -> None:
    rows = [{"Body": "Ann has 3 apples.", "Question": "How many?", "Answer": answer} for answer in ("3", "2.5")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = oapl(environment, tmp_path, "problems", "word-problems", "--from", "rows.jsonl", "--to", "train.jsonl")
    assert "kept 1 of 2 problems" in said and "the answer is not an integer" in said


def test_its_command_is_one_of_oapl_s(environment: dict[str, str], tmp_path: Path) -> None:
    assert "Show the mean length of the answers of each round" in oapl(environment, tmp_path, "--help")
    run = write_synthetic_run(tmp_path / "run")
    said = oapl(environment, tmp_path, "lengths", run.root)
    assert said.splitlines()[0].startswith("round_00  ")


def test_its_objective_trains_and_its_tracker_is_told(
    installed: Path, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the run's settings are written here, so the package must be found here too
    monkeypatch.syspath_prepend(str(installed))
    plugins._installed.cache_clear()
    model = write_tiny_model(tmp_path / "model", sharpness=3.0)
    run = make_run(tmp_path, model, 1, objective={"name": "tilted", "strength": 0.5}, trackers=["lines"])
    write_groups(run, made_groups(model, groups=4))
    done = subprocess.run(train_command(run), cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    (metrics,) = run.root.rglob(METRICS_FILE)
    assert metrics.parts[-3] == "tilted"
    losses = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]
    assert losses and all(map(math.isfinite, losses))
    told = [json.loads(line) for line in (run.root / "logs" / "lines.jsonl").read_text().splitlines()]
    assert [row[f"{TRAINING}/loss"] for row in told if f"{TRAINING}/loss" in row] == losses
    plugins._installed.cache_clear()


VERIFIED = """
import sys
from dataclasses import replace
from pathlib import Path
from oapl_core.planning.plan import round_steps, why_unfinished
from oapl_core.run_folder.lock import hold
from oapl_core.run_folder.run import Run
from oapl_core.runner import do
from oapl_core.settings.operation.fleet import FleetConfig

found = Run.open(Path(sys.argv[1]))
fleet = FleetConfig(verdicts={"runner": "behind", "at": f"sh -c 'nice > {sys.argv[2]}; exec nice -n 5 \\"$@\\"' sh"})
run = replace(found, config=found.config.model_copy(update={"fleet": fleet}))
verification = round_steps(0)[1]
with hold(run.root):
    do(run, verification, print)
print(why_unfinished(Run.open(found.root), verification))
"""


def test_its_runner_starts_a_stage(environment: dict[str, str], tmp_path: Path) -> None:
    run = write_synthetic_run(tmp_path / "runs", until="rollouts")
    seen = tmp_path / "seen"
    command = [sys.executable, "-c", VERIFIED, str(run.root), str(seen)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert seen.exists(), "the stage ran behind the command"
    assert done.stdout.splitlines()[-1] == "None", done.stdout
    assert sorted(run.verdicts(0).glob("*.parquet"))


CHECKED = """
from oapl_core.environments.making import maker
from oapl_core.settings.environment import EnvironmentConfig
from oapl_core.settings.reward import RewardConfig
from oapl_core.verdicts.workers.function_pool import FunctionCall, FunctionPool

made = maker(EnvironmentConfig(function="dictionary", settings={"words": {"cat": "an animal"}}))()
print(made.define("cat"))
pool = FunctionPool(RewardConfig(function="brief"), 1)
call = FunctionCall({"problem_id": "p"}, "so", {"reward": 1.0, "response_tokens": 500})
print([found.value for found in pool.call([call])])
pool.close()
"""


def test_its_environment_and_its_reward_are_found_by_name(environment: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHECKED], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["an animal", "[0.75]"]
