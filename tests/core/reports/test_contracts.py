"""The names that reports read are the names that other stages write."""

from typing import Any

import torch

from oapl_core.objectives.inputs import Loss
from oapl_core.reports.sections.training import METRIC_COLUMNS
from oapl_core.training.metrics import Counts, StepMeter
from oapl_extras.compare import tracks


class _OneRank:
    """An engine, as far as the meter looks at it."""

    def total(self, sums: torch.Tensor) -> torch.Tensor:
        return sums

    def total_of_parts(self, value: torch.Tensor) -> torch.Tensor:
        return value

    def largest(self, value: torch.Tensor) -> torch.Tensor:
        return value


def test_the_trainer_writes_every_metric_that_reports_read() -> None:
    meter = StepMeter(torch.device("cpu"))
    ones = torch.ones(2, 3)
    meter.add(
        Loss(torch.tensor(0.5)), ones, ones, ones, Counts(2, 6, 8, 32, 8, 0, 0), torch.tensor([1, 0]), torch.ones(6)
    )
    engine: Any = _OneRank()
    added_by_the_step = {"step", "epoch", "learning_rate", "grad_norm"}
    assert set(METRIC_COLUMNS) <= meter.result(engine).keys() | added_by_the_step
    assert set(tracks.METRICS) <= meter.result(engine).keys()
