"""How fast answers are judged (prints with ``python -m pytest -m bench -s bench/test_verifier_speed.py``).

The measurements of bench/verifier.py, with sane verdicts asserted instead of times. OAPL_LCB names a checkout of
LiveCodeBench, OAPL_MATHS a JSON-lines file with an "answer" in each row; without them those measurements are skipped.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import bench_programs, verifier
from bench.bench_programs import Case
from bench.livecodebench import HOW_TO_GET_IT, Checker
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.verdicts.verifier import Verifier
from tests import sandboxes

pytestmark = pytest.mark.bench


@pytest.mark.parametrize("tests", [1, 5, 40])
def test_our_verdicts_on_short_programs_are_those_known_by_construction(tests: int) -> None:
    cases = bench_programs.short(200, tests, seed=tests)
    config = VerifierConfig(workers=verifier.WORKERS)
    with Verifier(config, reuse_identical=False, level=sandboxes.LEVEL) as ours:
        passed, seconds = verifier.our_judge(ours)(cases)
    print(f"\n{tests} tests per program: {len(cases) / seconds:.0f} answers/s")
    assert passed == [case.passes for case in cases]


def test_verdicts_differ_from_the_common_checker_only_where_it_is_known_wrong() -> None:
    checkout = os.environ.get("OAPL_LCB")
    if not checkout:
        pytest.skip(HOW_TO_GET_IT)
    edges = bench_programs.known_differences()
    cases = [*bench_programs.short(100, 5), *bench_programs.cpu_bound(4, in_function=True), *edges]
    config = VerifierConfig(workers=verifier.WORKERS)
    with Checker(Path(checkout)) as checker, Verifier(config, reuse_identical=False, level=sandboxes.LEVEL) as ours:

        def theirs(batch: Sequence[Case]) -> tuple[list[bool], float]:
            return checker.judge(batch, verifier.WORKERS)

        pair, differences = verifier.compare(cases, verifier.our_judge(ours), theirs, repeats=1)
    print(f"\n{pair}", *differences, sep="\n    ")
    assert not [line for line in differences if "WE ERR" in line]
    assert {line.split(":")[0] for line in differences} <= {case.name.split(":")[0] for case in edges}


def test_isolation_overhead() -> None:
    medians = verifier.isolation(repeats=1, scale=1)
    assert all(milliseconds > 0 for milliseconds in medians.values())


def test_maths() -> None:
    path = os.environ.get("OAPL_MATHS")
    if not path:
        pytest.skip("set OAPL_MATHS")
    equal = verifier.maths(Path(path), repeats=1)
    assert list(equal.values()) == [len(Path(path).read_text().splitlines()), 0, 0]
