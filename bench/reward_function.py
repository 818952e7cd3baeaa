"""How many rows a second a person's own reward function gets: ``python -m bench.reward_function [ROWS]``.

A trivial function, so what is measured is the way there and back: problems with 20 tests, 8 answers of 4,000 characters
to each, two workers.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from oapl_core.settings.reward import RewardConfig
from oapl_core.verdicts.outcomes import Outcome
from oapl_core.verdicts.rewards import Rewarder
from oapl_core.verdicts.verifier import Verdict

WORKERS, GROUP, CHARACTERS = 2, 8, 4000
SOURCE = "def score(problem, response, verdict):\n    return verdict['reward']\n"


def rows_per_second(rows: int) -> float:
    """Of a pool that has started: sampling lasts longer than an import."""
    tests = [{"input": "1 " * 200, "output": "2 " * 200}] * 20
    problems: list[dict[str, Any]] = [
        {"problem_id": f"p{n}", "kind": "stdin", "statement": "x" * 2000, "tests": tests} for n in range(rows // GROUP)
    ]
    asked = [problem for problem in problems for _ in range(GROUP)]
    verdicts = [Verdict(problem["problem_id"], Outcome.PASSED, "print(1)", "full") for problem in asked]
    texts = [f"{n} ".ljust(CHARACTERS, "y") for n in range(len(asked))]
    with Rewarder(RewardConfig(function="trivial_reward:score"), 100, WORKERS) as rewarder:
        some = 4 * WORKERS * 32
        list(rewarder.stream(asked[:some], texts[:some], [1] * some, iter(verdicts[:some])))
        began = time.perf_counter()
        found = list(rewarder.stream(asked, texts, [1] * len(asked), iter(verdicts)))
        seconds = time.perf_counter() - began
    assert len(found) == len(asked) and all(verdict.reward == 1.0 for verdict in found)
    return len(asked) / seconds


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 40_000
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "trivial_reward.py").write_text(SOURCE)
        sys.path.insert(0, folder)
        each = sorted(rows_per_second(rows) for _ in range(5))
    print(f"{rows:,} rows, {WORKERS} workers: {each[2]:,.0f} rows/s (median of 5, {each[0]:,.0f} to {each[-1]:,.0f})")


if __name__ == "__main__":
    main()
