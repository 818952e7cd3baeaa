"""Every program of the catalogue of hostile and awkward programs gets its right verdict, and leaves nothing behind.

A hostile program prints the right answer after its attack, so an attack that works would show as `passed`.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from oapl_core.sandbox import Limits
from oapl_core.sandbox.sandbox import Sandbox
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.programs import ProgramGrade, grade_program
from tests import sandboxes
from tests.core.verdicts.catalogue import CALLS, PROGRAMS

LIMITS = Limits(cpu_s=1.0, wall_s=3.0, memory_mb=1024, output_mb=2)
STDIN_TESTS = [{"input": "7\n", "output": "7\n"}]
CALL_TESTS = [{"input": "[[1, 2]]", "output": "[[1, 2], 3]"}]


def _traces() -> tuple[object, ...]:
    shared_memory = sorted(p.name for p in Path("/dev/shm").iterdir()) if Path("/dev/shm").exists() else []
    segments = Path("/proc/sysvipc/shm").read_text() if Path("/proc/sysvipc/shm").exists() else ""
    return Path("/proc/self/mountinfo").read_text(), shared_memory, segments


@pytest.fixture(scope="module")
def grades(sandbox: Sandbox) -> Iterator[dict[str, ProgramGrade]]:
    """Every program of the catalogue graded once, on both servers at the same time."""
    before, servers = _traces(), sandbox.server_pids
    below = len(sandboxes.descendants(os.getpid()))
    names = [*PROGRAMS, *CALLS]

    def grade(name: str) -> ProgramGrade:
        if name in PROGRAMS:
            return grade_program(sandbox, PROGRAMS[name][0], None, STDIN_TESTS, LIMITS)
        return grade_program(sandbox, CALLS[name][0], "f", CALL_TESTS, LIMITS)

    yield dict(zip(names, sandbox.stream(grade, names), strict=True))
    assert _traces() == before, "a mount, file or shared-memory segment was left behind"
    assert sandbox.server_pids == servers, "a fork server died"
    assert len(sandboxes.descendants(os.getpid())) <= below, "a process was left behind"
    honest = grade_program(sandbox, "print(input())", None, STDIN_TESTS, LIMITS)
    assert honest.outcome is Outcome.PASSED


@pytest.mark.parametrize("name", [*PROGRAMS, *CALLS])
def test_the_verdict_is_the_catalogues(name: str, grades: dict[str, ProgramGrade]) -> None:
    right = (PROGRAMS | CALLS)[name][1].split()
    if sandboxes.IS_FALLBACK and name == "private directory":
        right = ["runtime_error"]  # without a mount namespace there is no directory of its own: nothing is writable
    grade = grades[name]
    assert grade.outcome.value in right, grade
