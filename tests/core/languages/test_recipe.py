"""The recipe of docs/languages.md, followed: its file is added to a copy of the packages, and its commands are run."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGES, ROOT, files
from tests.architecture.test_contributing import BLOCK, CONSOLE

PAGE = (ROOT / "docs" / "languages.md").read_text(encoding="utf-8")
FILES = re.compile(r"^`([\w/]+\.\w+)`, new:\n\n```\w+\n(.*?)```", re.DOTALL | re.MULTILINE)
FURTHER = """
import json, sys
from oapl_core.languages import languages
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.verdicts.verifier import Verifier
perl = languages()["perl"]
problem = {"problem_id": "p", "kind": "stdin", "entry_point": None, "language": "perl",
           "tests": [{"input": "1 2\\n", "output": "3\\n"}] * 6}
texts = [f"```{perl.fences[0]}\\n{source}\\n```" for source in (
    perl.right, perl.wrong, "die 'no'", "sub {", "1 while 1", "exit 3", "fork // exit 1; print 3",
    "open(my $f, '<', '/etc/passwd') or exit 1; print 3", "my @a; push @a, 'x' x 10_000_000 while 1",
    "use Socket; socket(my $s, PF_INET, SOCK_STREAM, 0) or exit 1; print 3", "kill 9, 1, -1 or exit 1; print 3",
)]
with Verifier(VerifierConfig(cpu_s=1.0, wall_s=5.0, memory_mb=512)) as verifier:
    verdicts = verifier.verify([problem] * len(texts), texts, ["stop"] * len(texts))
print(json.dumps([verdict.outcome for verdict in verdicts]))
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages with what the page adds."""
    folder = tmp_path_factory.mktemp("checkout")
    for path in files():
        if path.parts[0] in (*PACKAGES, "data") or path.name == "pyproject.toml":
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, folder / path)
    for name, content in FILES.findall(PAGE):
        assert not (folder / name).exists()
        (folder / name).write_text(content)
    return folder


def python(checkout: Path, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    done = subprocess.run([sys.executable, *arguments], cwd=checkout, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_says_what_happens(checkout: Path) -> None:
    assert BLOCK.search(PAGE)
    (console,) = CONSOLE.findall(PAGE)
    for command in console.removeprefix("$ ").split("\n$ "):
        line, *expected = command.rstrip("\n").split("\n")
        program, *arguments = shlex.split(line)
        assert program == "oapl"
        output = " ".join(python(checkout, "-m", "deployments.cli", *arguments).split())
        assert [text for text in expected if text not in output] == []


@pytest.mark.slow
def test_programs_in_a_described_language_are_judged_and_contained(checkout: Path) -> None:
    outcomes = json.loads(python(checkout, "-c", FURTHER))
    held = ["runtime_error"] * 3
    assert outcomes == [
        *("passed", "wrong_answer", "runtime_error", "runtime_error", "time_limit", "runtime_error"),
        *(held[0], held[1], "memory_limit", held[2], "runtime_error"),
    ]
