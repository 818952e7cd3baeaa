"""Speeds that `oapl plan` takes where ``[estimate]`` says none: of the measurement nearest to the model.

Reads speeds.toml, which `python -m bench.gpu page` writes from the raw file of one GPU's card. Each figure names its
source, and says whether it was measured or predicted.
"""

import math
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from oapl_core.settings.operation.estimate import EstimateConfig

FILE = Path(__file__).with_name("speeds.toml")


@dataclass(frozen=True)
class Speed:
    """One measurement or prediction."""

    value: float
    parameters: float
    """Weights of the model."""
    answer_tokens: float
    source: str

    def distance(self, parameters: float, answer_tokens: float) -> float:
        """Compare sizes and lengths by their ratios: twice as large is as far as half as large."""
        ratios = (parameters / self.parameters, answer_tokens / self.answer_tokens)
        return sum(abs(math.log(max(ratio, 1e-12))) for ratio in ratios)


@cache
def speeds() -> dict[str, tuple[Speed, ...]]:
    """Read what is known, by the name of the setting in ``[estimate]``."""
    return {name: tuple(Speed(**row) for row in rows) for name, rows in tomllib.loads(FILE.read_text()).items()}


def with_speeds(assumed: EstimateConfig, parameters: float) -> tuple[EstimateConfig, dict[str, str]]:
    """Fill the speeds that ``assumed`` leaves out.

    Args:
        assumed: the settings ``[estimate]``.
        parameters: weights of the model.

    Returns:
        The settings with every speed, and the source of each that was filled.
    """
    nearest = {
        name: min(rows, key=lambda row: row.distance(parameters, assumed.answer_tokens))
        for name, rows in speeds().items()
        if getattr(assumed, name) is None
    }
    values = {name: row.value for name, row in nearest.items()}
    return assumed.model_copy(update=values), {name: row.source for name, row in nearest.items()}
