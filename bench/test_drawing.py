"""Drawing by difficulty: its time grows with the problems, not with their square."""

import time
from pathlib import Path

import pytest

from oapl_core.rollouts.difficulty import Known, draw
from tests.core.rollouts.test_difficulty import run_of

pytestmark = pytest.mark.bench


def test_four_times_the_problems_cost_four_times_the_time(tmp_path: Path) -> None:
    def seconds(count: int) -> float:
        names = [f"p{i}" for i in range(count)]
        run, known = run_of(tmp_path, count // 2), {name: Known(8, i % 9, 1) for i, name in enumerate(names)}
        start = time.process_time()
        draw(names, dict.fromkeys(names, "a"), known, run, 2)
        return time.process_time() - start

    assert seconds(40_000) < 8 * seconds(10_000), "with room for a busy machine"
