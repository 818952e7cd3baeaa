"""Who may import what: layers, one door per library, nothing heavy at start."""

import ast
import json
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGES, ROOT, files, imported, is_type_checking, python_files, tree

DOORS = {"vllm": "rollouts", "deepspeed": "training", "matplotlib": "reports", "math_verify": "maths"}
HEAVY = {"torch", "vllm", "deepspeed", "transformers", "matplotlib", "math_verify", "datasets", "sympy", "pandas"}
SLOW_TO_START = HEAVY | {"prefect", "polars", "pyarrow", "numpy", "jinja2"}
CONTRACTS = {
    contract["name"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
}
# torch.autograd.Function and nn.Module are subclassed here, which cannot be done inside a function.
TORCH_AT_TOP = {"objectives", "training", "pretraining"}


STAGES = {name.removeprefix("oapl_core.") for name in CONTRACTS["stages talk through tables, not imports"]["modules"]}
SHARED = set(CONTRACTS["what stages share builds upward"]["layers"])
PRESENT = {path.parts[1] for path in python_files("oapl_core") if len(path.parts) == 3}


@cache
def only_for_types(path: Path) -> set[ast.AST]:
    """Everything below an ``if TYPE_CHECKING:`` of the file."""
    return {inner for node in ast.walk(tree(path)) if is_type_checking(node) for inner in ast.walk(node)}


def lint_imports(checkout: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache", "--config", "pyproject.toml"]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages without the rest of the checkout, to be broken on purpose."""
    checkout = tmp_path_factory.mktemp("checkout")
    for path in [*python_files(*PACKAGES), Path("pyproject.toml")]:
        (checkout / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, checkout / path)
    return checkout


FURTHER = {
    *(("oapl_core/tables.py", line) for line in ("import tasks", "import oapl_extras")),
    ("flows/round.py", "import deployments"),
    ("tasks/stage.py", "import oapl_extras.plan.estimate"),
    ("oapl_core/reports/__init__.py", "import oapl_core.evaluation"),
    ("oapl_core/maths/text.py", "from oapl_core import Verifier"),
    *(
        ("oapl_core/settings/__init__.py", line)
        for line in ("import oapl_core.run_folder.run", "from oapl_core import Verifier")
    ),
    ("oapl_core/planning/__init__.py", "import oapl_core.rollouts.parts"),
}
"""Imports that a contract forbids of which another one is tried by default."""


def test_import_contracts_hold() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow_if(case=lambda given: (given["module"], given["line"]) in FURTHER)
@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("oapl_core/tables.py", "import prefect"),
        ("oapl_core/tables.py", "import tasks"),
        ("tasks/stage.py", "import flows"),
        ("flows/round.py", "import deployments"),
        ("oapl_core/problems/__init__.py", "import oapl_extras.problem_sets"),
        ("oapl_core/rollouts/__init__.py", "import oapl_core.training"),
        ("oapl_core/reports/__init__.py", "import oapl_core.evaluation"),
        ("oapl_core/tables.py", "import oapl_extras"),
        ("tasks/stage.py", "import oapl_extras.plan.estimate"),
        ("deployments/cli.py", "from oapl_extras.watch import live"),
        ("oapl_extras/plan/__init__.py", "import oapl_extras.watch"),
        ("oapl_core/sandbox/__init__.py", "import oapl_core.verdicts"),
        ("oapl_core/maths/text.py", "import oapl_core.errors"),
        ("oapl_core/maths/text.py", "from oapl_core import Verifier"),
        ("oapl_core/settings/__init__.py", "import oapl_core.run_folder.run"),
        ("oapl_core/run_folder/__init__.py", "import oapl_core.planning.plan"),
        ("oapl_core/planning/__init__.py", "import oapl_core.rollouts.parts"),
        ("oapl_core/objectives/__init__.py", "import oapl_core.training.steps"),
        ("oapl_core/progress.py", "import oapl_core.launch"),
        ("oapl_core/settings/__init__.py", "from oapl_core import Verifier"),
        ("oapl_core/groups/__init__.py", "from oapl_core import Verifier"),
    ],
)
def test_contracts_catch_a_forbidden_import(copy: Path, module: str, line: str) -> None:
    original = (copy / module).read_text()
    (copy / module).write_text(f"{original}\n{line}\n")
    result = lint_imports(copy)
    (copy / module).write_text(original)
    assert result.returncode == 1
    assert "BROKEN" in result.stdout


def test_every_package_is_a_stage_or_shared() -> None:
    assert PRESENT == STAGES | SHARED


@pytest.mark.parametrize(("library", "package"), DOORS.items())
def test_library_has_one_door(library: str, package: str) -> None:
    doors = [
        path
        for path in python_files(*PACKAGES)
        if any(library in imported(node) for node in ast.walk(tree(path)) if node not in only_for_types(path))
    ]
    assert len(doors) == 1, f"{library} is imported in {[str(path) for path in doors]}"
    assert doors[0].parts[:2] == ("oapl_core", package)


def heavy_at_the_top(path: Path) -> set[str]:
    allowed = {"torch"} if path.parts[0] == "oapl_core" and path.parts[1] in TORCH_AT_TOP else set()
    at_import = {name for node in tree(path).body for name in imported(node)}
    return (at_import & HEAVY) - allowed


def test_heavy_libraries_are_imported_inside_functions() -> None:
    found = {str(path): heavy_at_the_top(path) for path in python_files(*PACKAGES)}
    assert not {path: names for path, names in found.items() if names}


@pytest.mark.parametrize(
    "module",
    [
        "oapl_core",
        "deployments.cli",
        "oapl_core.settings.experiment",
        "oapl_core.run_folder.run",
        "oapl_core.run_folder.ledger",
    ],
)
def test_module_starts_without_heavy_libraries(module: str) -> None:
    program = f"import json, sys, {module}; print(json.dumps(sorted({{n.split('.')[0] for n in sys.modules}})))"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)
    assert not SLOW_TO_START & set(json.loads(result.stdout))


def test_help_answers_without_heavy_libraries() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "deployments.cli", "--help"]
    result = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert "run" in result.stdout
    loaded = {line.rsplit("|", 1)[1].strip().split(".")[0] for line in result.stderr.splitlines() if "|" in line}
    assert "typer" in loaded, "importtime was not understood"
    assert not SLOW_TO_START & loaded


def test_no_module_of_the_core_names_prefect_in_an_import() -> None:
    core = python_files("oapl_core")
    assert not [str(path) for path in core if any("prefect" in imported(node) for node in ast.walk(tree(path)))]


def test_git_knows_the_packages() -> None:
    assert {path.parts[0] for path in files()} >= set(PACKAGES)
