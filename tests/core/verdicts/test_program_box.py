"""Programs of another project's harness: they run isolated, and a program that was ended has not ended well."""

import json
import socket
from typing import Any

import pytest

from oapl_core.settings.verifier import VerifierConfig
from oapl_core.verdicts.program_box import program_box

PROGRAMS = {
    "print(int(input()) + 1)": (0, "5\n"),
    "assert 1 == 2": (1, ""),
    "import sys; sys.exit(3)": (3, ""),
    "open('/etc/passwd').read()": (1, ""),
    "while True: pass": (137, ""),
}


@pytest.fixture(scope="module")
def said() -> dict[str, dict[str, Any]]:
    config = VerifierConfig(cpu_s=1, wall_s=3, workers=1, libraries=())
    with program_box(config) as box, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(box))
        with client.makefile("rwb") as lines:
            found = {}
            for source in PROGRAMS:
                lines.write(json.dumps({"source": source, "input": "4\n"}).encode() + b"\n")
                lines.flush()
                found[source] = json.loads(lines.readline())
    return found


@pytest.mark.parametrize(("source", "due"), PROGRAMS.items())
def test_a_program_says_how_it_ended(said: dict[str, Any], source: str, due: tuple[int, str]) -> None:
    assert (said[source]["exit_code"], said[source]["stdout"]) == due
