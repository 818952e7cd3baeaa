"""The worked examples of CONTRIBUTING.md: applied to a copy of the packages, they pass their tests and the checks."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGES, ROOT, files

PAGE = ROOT / "CONTRIBUTING.md"
BLOCK = re.compile(r"^`([\w/]+\.\w+)`([^\n]*):\n\n```(\w+)\n(.*?)```", re.DOTALL | re.MULTILINE)
"""A file's path, whether it is new, and what it holds or how it changes."""
CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
EXAMPLES = ("An objective", "A problem set", "A stage")


def section(title: str) -> str:
    return PAGE.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]


def changed(text: str, diff: str) -> str:
    """``text`` after the hunks of ``diff``, whose last line may be the beginning of the text's."""
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines()
        old = "\n".join(line[1:] for line in lines if line[0] in " -")
        new = "\n".join(line[1:] for line in lines if line[0] in " +")
        assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in the file"
        text = text.replace(old, new)
    return text


def apply(title: str, checkout: Path) -> list[Path]:
    """Make the changes of one example in ``checkout``; returns the changed Python files."""
    paths = []
    for name, remark, language, content in BLOCK.findall(section(title)):
        path = checkout / name
        if language == "diff":
            path.write_text(changed(path.read_text(), content))
        else:
            assert not path.exists(), f"{name}: {remark}"
            path.write_text(content)
        paths.append(path)
    return [path for path in paths if path.suffix == ".py"]


def run(checkout: Path, *command: object) -> str:
    environment = os.environ | {"PYTHONPATH": str(checkout), "PYTEST_ADDOPTS": ""}
    done = subprocess.run([*map(str, command)], cwd=checkout, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages, their tests and their data, without the rest of the checkout."""
    checkout = tmp_path_factory.mktemp("checkout")
    for path in files():
        if path.parts[0] in (*PACKAGES, "tests", "data") or path.name in ("pyproject.toml", "objectives.md"):
            (checkout / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, checkout / path)
    return checkout


@pytest.mark.slow_if(case=lambda given: given["title"] != "A problem set")
@pytest.mark.parametrize("title", EXAMPLES)
def test_the_example_does_what_the_page_says(title: str, packages: Path, tmp_path: Path) -> None:
    checkout = shutil.copytree(packages, tmp_path / "checkout")
    python_files = apply(title, checkout)
    assert python_files
    ruff = Path(sys.executable).with_name("ruff")
    run(checkout, ruff, "check", "--quiet", *python_files)
    run(checkout, ruff, "format", "--check", "--quiet", *python_files)
    programs = {"python": [sys.executable], "oapl": [sys.executable, "-m", "deployments.cli"]}
    for console in CONSOLE.findall(section(title)):
        for command in console.removeprefix("$ ").split("\n$ "):
            line, *expected = command.rstrip("\n").split("\n")
            program, *arguments = shlex.split(line)
            output = run(checkout, *programs[program], *arguments)
            assert [text for text in expected if text not in output] == []


def test_the_page_names_tests_and_files_that_exist() -> None:
    new = {name for title in EXAMPLES for name, remark, _, _ in BLOCK.findall(section(title)) if "new" in remark}
    named = set(re.findall(r"`((?:oapl_core|tests|deployments|flows|tasks|data|docs)/[\w/]+\.\w+)`", PAGE.read_text()))
    assert not [name for name in named - new if not (ROOT / name).exists()]
