"""examples/package: a package outside of this tree, really installed, whose names work wherever a name is chosen."""

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from oapl_core import plugins, tables
from oapl_core.groups.build import build
from oapl_core.planning.plan import round_steps
from oapl_core.run_folder.run import METRICS_FILE, Run
from oapl_core.runner.crew import helping_steps
from oapl_core.settings.experiment_file import parse_experiment
from oapl_extras.trackers.sending import usable
from tests.core.groups.test_build import put, verdict, write_round
from tests.core.groups.test_build import rollout as answered
from tests.core.training.made_round import made_groups, make_run, train_command, write_groups
from tests.core.verdicts.test_verify import rollout
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


def variables(installed: Path) -> dict[str, str]:
    """Variables of processes that find the package."""
    paths = [str(installed), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.fixture
def environment(installed: Path) -> dict[str, str]:
    """Variables of processes that find the package."""
    return variables(installed)


@contextmanager
def names_known_here(installed: Path) -> Iterator[None]:
    """The package is found in this process, too, where a run's settings are written and read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(installed))
        plugins._installed.cache_clear()
        try:
            yield
        finally:
            plugins._installed.cache_clear()


def python(environment: dict[str, str], folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Call Python in a folder outside of the tree."""
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)


def oapl(environment: dict[str, str], folder: Path, *words: object) -> str:
    """Call `oapl` in a folder outside of the tree; it must succeed."""
    done = python(environment, folder, "-m", "deployments.cli", *map(str, words))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_problem_set_is_imported_by_name(environment: dict[str, str], tmp_path: Path) -> None:
    rows = [{"Body": "Ann has 3 apples.", "Question": "How many?", "Answer": answer} for answer in ("3", "2.5")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = oapl(environment, tmp_path, "problems", "word-problems", "path=rows.jsonl", "--to", "train.jsonl")
    assert "kept 1 of 2 problems" in said and "the answer is not an integer" in said


def test_its_command_is_one_of_oapl_s(environment: dict[str, str], tmp_path: Path) -> None:
    assert "Show the mean length of the answers of each round" in oapl(environment, tmp_path, "--help")
    run = write_synthetic_run(tmp_path / "run")
    said = oapl(environment, tmp_path, "lengths", run.root)
    assert said.splitlines()[0].startswith("round_00  ")


@pytest.fixture(scope="module")
def trained(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run whose one round was trained with the package's objective, followed by its tracker."""
    folder = tmp_path_factory.mktemp("trained")
    model = write_tiny_model(folder / "model", sharpness=3.0)
    with names_known_here(installed):
        objective = {"name": "tilted", "strength": 0.5}
        run = make_run(folder, model, 1, objective=objective, trackers=["json-lines"])
        write_groups(run, made_groups(model, groups=4))
    done = python(variables(installed), folder, *train_command(run)[1:])
    assert done.returncode == 0, done.stderr[-2000:]
    return run


def test_its_objective_trains(trained: Run) -> None:
    (metrics,) = trained.root.rglob(METRICS_FILE)
    assert metrics.parts[-3] == "tilted"
    losses = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]
    assert losses and all(map(math.isfinite, losses))


def catch_up(run: Run) -> None:
    """Send what trackers miss, as the report does."""
    missing = usable(run, print)
    missing.settle()
    missing.end(False)


def test_its_tracker_has_every_step_once(trained: Run, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (metrics,) = trained.root.rglob(METRICS_FILE)
    losses = [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]
    path = trained.root / "logs" / "figures.jsonl"
    first, *lines = map(json.loads, path.read_text().splitlines())
    assert first["name"] == trained.root.name and first["settings"]["objective"]["name"] == "tilted"
    steps = [line for line in lines if line["axis"] == "training"]
    assert [line["step"] for line in steps] == list(range(1, len(losses) + 1))
    assert [line["values"]["training/loss"] for line in steps] == pytest.approx(losses)
    assert "rounds" in {line["axis"] for line in lines}, "what the ledger knew before the first step"
    assert {line["run"] for line in lines} == {first["run"]}
    # what `oapl report` would still send: nothing to this file, and a new run's worth to another one
    written = path.read_bytes()
    with names_known_here(installed):
        catch_up(trained)
        assert path.read_bytes() == written
        (trained.root / "logs" / "trackers" / "json-lines.jsonl").unlink()
        monkeypatch.setenv("OAPL_JSON_LINES", str(trained.root / "shared.jsonl"))
        catch_up(trained)
    again = [json.loads(line) for line in (trained.root / "shared.jsonl").read_text().splitlines()]
    assert [(line["axis"], line["step"]) for line in again[1:]] == [(line["axis"], line["step"]) for line in lines]
    assert again[0]["run"] != first["run"], "a record that is deleted begins a new run there"


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
    done = python(environment, tmp_path, "-c", CHECKED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["an animal", "[0.75]"]


def test_its_filter_chooses_rows(installed: Path, tmp_path: Path) -> None:
    with names_known_here(installed):
        run = Run.create(parse_experiment(grouped(tmp_path, ["any_correct", "distinct"]), "test"))
        problem = dict.fromkeys(name for name, _ in tables.PROBLEMS) | {
            "problem_id": "a",
            "split": "train",
            "tests": [],
        }
        put(run, run.problems, tables.PROBLEMS, [problem])
        rows = [answered("a", i, text=text) for i, text in enumerate(("4", "5", " 4\n", "6"))]
        write_round(run, [rows], [[verdict("a", i, float(i in (0, 2))) for i in range(4)]])
        build(run, 0)
    assert tables.read_table(run.groups(0), tables.GROUPS)["rollout_id"].to_pylist() == ["a/0", "a/1", "a/3"]
    assert run.ledger.artifacts()[run.name(run.groups(0))].details["dropped"] == {"repeats another": 1}


def grouped(folder: Path, keep: list[str]) -> dict[str, Any]:
    """Settings of a round with those filters."""
    problems = dict.fromkeys(("train", "validation", "heldout"), folder / "unused.jsonl")
    return {"name": "g", "runs_dir": folder, "model": folder, "problems": problems, "rounds": [{"keep": keep}]}


STAGE = """
import sys
from pathlib import Path
from oapl_core.planning.plan import round_steps
from oapl_core.run_folder.lock import hold
from oapl_core.run_folder.run import Run
from oapl_core.runner import do

run = Run.open(Path(sys.argv[1]))
with hold(run.root):  # as `oapl run` does it
    do(run, round_steps(0)[1], print)
"""
OWN_REWARD = """
import os

def niceness(problem, response, verdict):
    return float(os.getpriority(os.PRIO_PROCESS, 0))
"""


def sampled_run(folder: Path, at: str) -> Run:
    """A run with three parts of answers to be verified, whose reward is the niceness of the process that gives it."""
    (folder / "own_reward.py").write_text(OWN_REWARD)
    values = {
        "name": "polite",
        "model": "/m",
        "runs_dir": str(folder),
        "cache_dir": str(folder),
        "verifier": {"workers": 1},
        "reward": {"function": "own_reward:niceness"},
        "problems": dict.fromkeys(("train", "validation", "heldout"), "/problems.jsonl"),
        "fleet": {"verdicts": {"runner": "polite", "at": at, "shares": 2}},
    }
    run = Run.create(parse_experiment(values, "test"))
    problem = dict.fromkeys(name for name, _ in tables.PROBLEMS) | {"problem_id": "p", "split": "train", "tests": []}
    with run.writing(run.problems, {}, {}) as draft:
        asked = problem | {"kind": "math", "statement": "What is 1 + 1?", "answer": "2"}
        draft.rows = tables.write_table(draft.path, tables.PROBLEMS, [asked])
    for number in range(3):
        rows = [rollout(number, sample, text) for sample, text in enumerate(("\\boxed{2}", "nothing"))]
        with run.writing(run.rollouts(0) / f"part-{number:05d}.parquet", {}, {}) as draft:
            draft.rows = tables.write_table(draft.path, tables.ROLLOUTS, rows)
    return run


def verified(installed: Path, folder: Path, at: str) -> tuple[Run, subprocess.CompletedProcess[str]]:
    """Verify such a run in a process of its own, whose end is for the caller to judge."""
    with names_known_here(installed), pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run = sampled_run(folder, at)
    return run, python(variables(installed), folder, "-c", STAGE, str(run.root))


@pytest.mark.slow
def test_its_runner_ends_a_verification_with_a_helper(installed: Path, tmp_path: Path) -> None:
    run, done = verified(installed, tmp_path, at="7")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "round 0: verification: with niceness 7" in done.stdout
    assert "verify round 0 | 6/6 rollouts" in done.stdout, "its progress is forwarded"
    step = round_steps(0)[1]
    labels = [step.label, helping_steps(step, 2)[0].label]
    started = [json.loads(line) for line in (run.root / "logs" / "polite.jsonl").read_text().splitlines()]
    assert [one["step"] for one in started] == labels
    assert all(one["command"][:3] == ["nice", "-n", "7"] for one in started)
    assert {entry.stage: entry.exit_code for entry in run.ledger.stages()}[step.label] == 0
    parts = sorted(run.verdicts(0).iterdir())
    assert [part.name for part in parts] == [part.name for part in sorted(run.rollouts(0).iterdir())]
    rows = [row for part in parts for row in tables.read_table(part, tables.VERDICTS).to_pylist()]
    assert [row["outcome"] for row in rows] == ["passed", "no_answer"] * 3
    expected = min(19, os.getpriority(os.PRIO_PROCESS, 0) + 7)
    assert {row["reward"] for row in rows} == {expected}, "the stage ran under nice, with all that it started"


def test_its_runner_refuses_what_is_no_niceness_in_one_line(installed: Path, tmp_path: Path) -> None:
    _, done = verified(installed, tmp_path, at="very")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "ConfigError: fleet: at = 'very' is not a niceness; the runner 'polite' takes '0' to '19'"
    )
