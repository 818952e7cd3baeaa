"""`make setup` with a Python and a uv that only take notes: what is installed when, what is said if it fails."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT

TOOLS = (
    *("bash", "cat", "sha256sum", "cut", "grep", "awk", "id", "head"),
    *("mkdir", "mv", "rm", "cp", "wc", "flock", "dirname"),
)
PYTHON = """#!/bin/bash
case "$*" in
    -V | -VV) echo Python 3.11.9 ;;
    "-c import sys; print"*) echo 3.11 ;;
    "-c from os.path import isfile"*) [[ ! -f no-headers ]] ;;
    "-c from ensurepip"* | "-m pip --version") [[ ! -f no-ensurepip-no-pip ]] ;;
    "-m venv "*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    "-m pip install "*) cp "$(dirname "$(command -v python3.11)")/fake-uv" .venv/bin/uv ;;
esac
"""
UV = """#!/bin/bash
echo "$*" >>uv.log
if [[ -f uv-is-killed ]]; then rm uv-is-killed; kill -9 $PPID; fi
"""
PLENTY = "#!/bin/bash\necho 'Filesystem 1024-blocks Used Available'; echo 'disk 9 9 99999999 1% /'\n"
FULL = PLENTY.replace("99999999", "2048")


@dataclass
class Checkout:
    """A copy of what set-up reads, and a PATH on which nothing but ``bin`` is found."""

    folder: Path
    bin: Path

    def add_program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def setup(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "requirements/install.sh", *words]
        env = {"PATH": str(self.bin), "HOME": str(self.folder), **environment}
        return subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True)

    def installs(self) -> list[str]:
        """What uv was asked for so far."""
        log = self.folder / "uv.log"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    made = Checkout(tmp_path / "checkout", tmp_path / "bin")
    made.bin.mkdir()
    (made.folder / "requirements").mkdir(parents=True)
    for name in (
        "pyproject.toml",
        "requirements/install.sh",
        "requirements/cpu.lock",
        "requirements/cuda.lock",
        "requirements/work.lock",
        "requirements/gym.lock",
    ):
        shutil.copy(ROOT / name, made.folder / name)
    for tool in TOOLS:
        found = shutil.which(tool, path="/usr/bin:/bin" + os.pathsep + os.environ["PATH"])
        assert found, tool
        (made.bin / tool).symlink_to(found)
    made.add_program("python3.11", PYTHON)
    made.add_program("fake-uv", UV)
    made.add_program("df", PLENTY)
    return made


def test_second_setup_installs_nothing(checkout: Checkout) -> None:
    assert checkout.setup().returncode == 0
    torch, environment, project = checkout.installs()
    assert "--no-deps" in torch
    assert "--no-deps" in environment
    assert "requirements/cpu.lock" in environment
    assert "--no-deps" in project
    assert project.endswith("--no-build-isolation --editable .")
    again = checkout.setup()
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert len(checkout.installs()) == 3


def test_work_adds_its_locks_once_and_setup_leaves_them(checkout: Checkout) -> None:
    checkout.setup()
    for _ in range(2):
        assert checkout.setup("work").returncode == 0
        work, gym = checkout.installs()[3:]
        assert "--no-deps" in work and "-r requirements/work.lock" in work
        assert "--no-deps" in gym and gym.endswith("-r requirements/gym.lock")
    with (checkout.folder / "requirements/work.lock").open("a") as file:
        file.write("zzz==1\n")
    assert checkout.setup().stdout == ""
    checkout.setup("work")
    assert len(checkout.installs()) == 7, "the lock to run with is not touched"


def test_killed_setup_is_built_again_from_nothing(checkout: Checkout) -> None:
    (checkout.folder / "uv-is-killed").touch()
    assert checkout.setup().returncode != 0
    half_installed = checkout.folder / ".venv/half-installed"
    half_installed.touch()
    assert checkout.setup().returncode == 0
    assert not half_installed.exists()
    assert "--editable" in checkout.installs()[-1]


def test_new_lock_rebuilds_and_new_pyproject_only_reinstalls_the_project(checkout: Checkout) -> None:
    checkout.setup()
    first = checkout.installs()
    with (checkout.folder / "pyproject.toml").open("a") as file:
        file.write("\n")
    checkout.setup()
    assert checkout.installs() == [*first, first[-1]]
    with (checkout.folder / "requirements/cpu.lock").open("a") as file:
        file.write("zzz==1\n")
    checkout.setup()
    assert len(checkout.installs()) == 2 * len(first) + 1


def test_moved_checkout_is_built_again(checkout: Checkout) -> None:
    checkout.setup()
    first = checkout.installs()
    checkout.folder = checkout.folder.rename(checkout.folder.with_name("moved"))
    checkout.setup()
    assert len(checkout.installs()) == 2 * len(first)


def test_wheel_folders_replace_the_torch_index(checkout: Checkout) -> None:
    checkout.setup(PIP_FIND_LINKS="/wheels /more")
    environment, _ = checkout.installs()
    assert environment.endswith("requirements/cpu.lock --find-links /wheels --find-links /more")
    checkout.setup("work", PIP_FIND_LINKS="/wheels /more")
    assert checkout.installs()[2].endswith("requirements/work.lock --find-links /wheels --find-links /more")


def test_without_a_gpu_torch_alone_comes_from_the_cpu_index(checkout: Checkout) -> None:
    checkout.setup()
    torch, rest, _ = checkout.installs()
    assert "--torch-backend cpu" in torch
    assert "requirements/cpu.lock" in rest
    assert "--torch-backend" not in rest


def test_what_cannot_be_compiled_is_said_once_and_holds_nothing_up(checkout: Checkout) -> None:
    checkout.add_program("fake-uv", UV + '[[ "$*" != *gym.lock ]]\n')
    first = checkout.setup("work")
    assert first.returncode == 0
    assert "without reasoning-gym" in first.stdout and "pip install --no-deps -r requirements/gym.lock" in first.stdout
    assert checkout.setup("work").stdout == ""


def test_with_a_gpu_everything_comes_from_the_registry(checkout: Checkout) -> None:
    checkout.add_program("nvidia-smi", "#!/bin/bash\necho 580.65.06\n")
    checkout.add_program("gcc", "#!/bin/bash\n")
    checkout.setup()
    environment, _ = checkout.installs()
    assert environment.endswith("-r requirements/cuda.lock")


def test_lock_can_be_chosen_by_hand(checkout: Checkout) -> None:
    checkout.add_program("nvidia-smi", "#!/bin/bash\necho 535.1\n")
    assert checkout.setup(OAPL_LOCK="cpu").returncode == 0
    assert "requirements/cpu.lock" in checkout.installs()[1]


@pytest.mark.parametrize(
    ("program", "text", "environment", "message"),
    [
        ("python3.11", "#!/bin/bash\nexit 1\n", {}, "no Python 3.11, 3.12 or 3.13 found"),
        ("nvidia-smi", "#!/bin/bash\necho 535.1\n", {}, "older than 580"),
        ("nvidia-smi", "#!/bin/bash\n", {"OAPL_LOCK": "rocm"}, "say cpu or cuda"),
        ("df", FULL, {}, "2 MiB free"),
        ("fake-uv", "#!/bin/bash\nexit 2\n", {}, "`make setup` again continues"),
    ],
    ids=["no python", "old driver", "unknown lock", "full disk", "failed download"],
)
def test_what_cannot_be_set_up_is_said_in_one_line(
    checkout: Checkout, program: str, text: str, environment: dict[str, str], message: str
) -> None:
    checkout.add_program(program, text)
    result = checkout.setup(**environment)
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("setup: error: ")
    assert message in result.stderr
    assert not (checkout.folder / ".venv/setup/environment").exists()


def test_wheels_for_cpus_are_refused_for_the_cuda_lock_before_anything_is_fetched(checkout: Checkout) -> None:
    checkout.add_program("gcc", "#!/bin/bash\n")
    wheels = checkout.folder / "wheels"
    wheels.mkdir()
    (wheels / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").touch()
    result = checkout.setup(OAPL_LOCK="cuda", PIP_FIND_LINKS=f"/more {wheels}")
    assert result.returncode == 1
    assert "is PyTorch for CPUs" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not checkout.installs()
    assert checkout.setup(OAPL_LOCK="cpu", PIP_FIND_LINKS=f"/more {wheels}").returncode == 0


def test_missing_venv_package_is_named_with_the_command_that_adds_it(checkout: Checkout) -> None:
    (checkout.folder / "no-ensurepip-no-pip").touch()
    (checkout.bin / "id").unlink()
    checkout.add_program("id", "#!/bin/bash\necho 1000\n")
    result = checkout.setup()
    assert result.returncode == 1
    assert result.stderr.endswith("run: sudo apt-get install -y python3.11-venv\n")


def test_headers_of_the_chosen_python_are_wanted_where_there_is_a_compiler_too(checkout: Checkout) -> None:
    checkout.add_program("gcc", "#!/bin/bash\n")
    (checkout.folder / "no-headers").touch()
    (checkout.bin / "id").unlink()
    checkout.add_program("id", "#!/bin/bash\necho 1000\n")
    assert checkout.setup(OAPL_LOCK="cuda").stderr.endswith("run: sudo apt-get install -y python3.11-dev\n")
    (checkout.folder / "no-headers").unlink()
    (checkout.bin / "gcc").unlink()
    assert checkout.setup(OAPL_LOCK="cuda").stderr.endswith("run: sudo apt-get install -y gcc libc6-dev\n")
    assert checkout.setup(OAPL_LOCK="cpu").returncode == 0, "nothing is compiled there"


def test_lists_of_packages_are_fetched_once_before_the_first_is_installed(checkout: Checkout) -> None:
    (checkout.folder / "no-headers").touch()
    (checkout.folder / "no-ensurepip-no-pip").touch()
    (checkout.bin / "id").unlink()
    checkout.add_program("id", "#!/bin/bash\necho 0\n")
    checkout.add_program("gcc", "#!/bin/bash\n")
    checkout.add_program("apt-get", '#!/bin/bash\necho "$*" >>apt.log; [[ $1 != update ]]\n')
    assert checkout.setup(OAPL_LOCK="cuda").returncode == 0
    wanted = ["update", "install -y python3.11-dev", "install -y python3.11-venv"]
    assert (checkout.folder / "apt.log").read_text().splitlines() == wanted


def test_failed_setup_can_be_repeated(checkout: Checkout) -> None:
    checkout.add_program("fake-uv", "#!/bin/bash\nexit 2\n")
    checkout.setup()
    checkout.add_program("fake-uv", UV)
    assert checkout.setup().returncode == 0
    assert "--editable" in checkout.installs()[-1]
