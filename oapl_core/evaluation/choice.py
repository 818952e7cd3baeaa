"""Choice of the measured epoch among the last round's: on validation problems, or the last one. Pure.

An epoch that was chosen by the very problems that a result is reported on is better there than it will be elsewhere.
That needs ``evaluation.force`` and is said wherever the epoch is named.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from oapl_core.evaluation.measures import Row, mean_reward

WARNING = "chosen on the held-out problems that are reported"
ON = {"validation": "chosen on validation problems", "heldout": WARNING, "last": "the last epoch, nothing was chosen"}
"""Words for the basis of the choice."""


def best(rows_by_label: Mapping[str, Sequence[Row]]) -> str:
    """Return the label with the highest mean reward; of equal ones the first."""
    return max(rows_by_label, key=lambda label: mean_reward(rows_by_label[label]))


def basis(wanted: Literal["validation", "heldout", "last"], has_validation: bool, epochs: int) -> str:
    """Return the basis that really decides. Without validation problems nothing can be chosen on them, and the last
    epoch is taken; of a single epoch held-out problems choose nothing."""
    is_idle = not has_validation if wanted == "validation" else epochs == 1
    return "last" if is_idle else wanted
