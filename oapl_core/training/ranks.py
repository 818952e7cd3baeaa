"""Place of this process among the ranks of a training, which torch's launcher puts into the environment."""

import os


def own_rank() -> int | None:
    """Number of this process among those of a training; None if no launcher started it.

    RANK alone does not tell: schedulers set it for whole nodes.
    """
    return int(os.environ["RANK"]) if "LOCAL_RANK" in os.environ else None


def rank_count() -> int:
    """Count the ranks that train together, this process being one of them."""
    return 1 if own_rank() is None else int(os.environ["WORLD_SIZE"])
