"""The file of a round that draws by difficulty: round_NN/1_draw.parquet, a row for each training problem; and its line.

What draws is ``rollouts/difficulty.py``. The ledger's details of the file are what is told of it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oapl_core.run_folder.run import DRAW_FILE, Run

DRAWS = (
    ("problem_id", "str"),
    ("source", "str"),
    ("judged", "int32"),
    ("correct", "int32"),
    ("weight", "float32"),
    ("last_round", "int32"),
    ("settled", "str"),
    ("state", "str"),
)


def draw_file(run: Run, number: int) -> Path:
    """Return the path of round ``number``'s draw."""
    return run.round_dir(number) / DRAW_FILE


def told(details: Mapping[str, Any]) -> str:
    """``drew 250 of 960 problems: 120 tried before, mean pass rate 0.42; retired: 25 always right, 5 always wrong``."""
    rate = "" if details["mean_pass_rate"] is None else f", mean pass rate {details['mean_pass_rate']:.2f}"
    retired = f"{details['always_right']:,} always right, {details['always_wrong']:,} always wrong"
    drew = f"drew {details['drawn']:,} of {details['of']:,} problems: {details['tried_before']:,} tried before"
    return f"{drew}{rate}; retired: {retired}"
