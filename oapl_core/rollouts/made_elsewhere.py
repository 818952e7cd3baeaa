"""Rollouts that a machine made which does not see the run folder, compared with what the round asks for. Pure but for
reading the file (tables.ROLLOUTS)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oapl_core.errors import DataError
from oapl_core.rollouts.parts import Part
from oapl_core.run_folder.run import Run
from oapl_core.seeds import derive_seed
from oapl_core.tables import ROLLOUTS, read_table

_COMPARED = [
    *("run", "round", "problem_id", "sample", "policy_hash", "seed", "temperature", "max_tokens", "response_ids"),
    "logprobs",
]
_ROUNDING = 1e-6
"""Share by which a temperature is rounded in the table, which has four bytes for it."""


def count_checked(run: Run, number: int, part: Part, path: Path, policy_hash: str) -> int:
    """Count the rows of ``path``, which are to be those of ``part`` in round ``number``.

    Raises:
        DataError: they are not the answers that the round asks for.
    """
    rows = read_table(path, ROLLOUTS, _COMPARED).to_pylist()
    asked = [(problem, sample) for problem in part.problems for sample in range(part.group_size)]
    if [(row["problem_id"], row["sample"]) for row in rows] != asked:
        raise DataError("has other problems or samples")
    if any(row["policy_hash"] != policy_hash for row in rows):
        raise DataError("was sampled by other weights")
    if not all(_is_asked(row, run, number) for row in rows):
        raise DataError("has rows of another run, seed, temperature or length, or without log-probs")
    return len(rows)


def _is_asked(row: Mapping[str, Any], run: Run, number: int) -> bool:
    sampling = run.config.of_round(number).sampling
    seed = derive_seed(run.config.seed, "rollout", number, row["problem_id"], row["sample"])
    made = (row["run"], row["round"], row["seed"], row["max_tokens"])
    return (
        made == (run.root.name, number, seed, sampling.max_tokens)
        and abs(row["temperature"] / sampling.temperature - 1.0) < _ROUNDING
        and 0 < len(row["response_ids"]) == len(row["logprobs"])
    )
