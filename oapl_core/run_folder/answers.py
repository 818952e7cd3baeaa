"""The answers of one checkpoint in an evaluation, each with its verdict. Reads rollouts and verdicts; writes nothing.

A checkpoint's folder has parts of tables.ROLLOUTS in ``1_rollouts`` and, under the same names, of tables.VERDICTS in
``2_verdicts``.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from oapl_core.run_folder.run import ROLLOUTS_DIR
from oapl_core.run_folder.verdict_versions import VERDICTS_DIR
from oapl_core.tables import ROLLOUTS, VERDICTS, read_table
from oapl_core.turns import sampled_lengths

if TYPE_CHECKING:
    import polars as pl

_SAMPLED = "rollout_id problem_id policy_hash sample finish_reason temperature top_p max_tokens seed".split()
_JUDGED = ["rollout_id", "reward", "correct", "outcome"]


def verdicts_on(part: Path) -> Path:
    """Return the path of the verdicts on the rollouts of ``part``."""
    return part.parents[1] / VERDICTS_DIR / part.name


def parts_below(folder: Path) -> list[Path]:
    """List every finished part of rollouts of the checkpoints whose folders are in ``folder``, in order."""
    return sorted(folder.glob(f"*/{ROLLOUTS_DIR}/part-*.parquet"))


def answers(part: Path, with_texts: bool = False) -> "pl.DataFrame":
    """Return the columns of tables.EVALUATIONS but those that only the part's place says: checkpoint, split, kind.

    Raises:
        DataError: rollouts or verdicts are missing or broken.
    """
    import polars as pl

    sampled = pl.DataFrame(read_table(part, ROLLOUTS, [*_SAMPLED, *(["text"] if with_texts else [])]))
    sampled = sampled.with_columns(sampled_lengths(part).cast(pl.Int32).alias("response_tokens"))
    judged = pl.DataFrame(read_table(verdicts_on(part), VERDICTS, _JUDGED))
    return sampled.join(judged, on="rollout_id", how="left", maintain_order="left", validate="1:1").drop("rollout_id")
