"""Options of any objective through the trainer: what they report, and that no split changes it."""

from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from oapl_core.objectives import Method, Objective
from oapl_core.training.examples import Examples
from tests.core.training.test_objectives import CountingEngine, examples, model, trainer_of

__all__ = ["examples", "model"]  # fixtures
MASKED = {"masks": [{"low": 0.8, "high": 1.3}, {"of": "mean", "low": 0.9, "answers": "negative"}]}


def optioned(name: str, **options: Any) -> Method:
    made: Method = TypeAdapter(Objective).validate_python({"name": name, **options}).loaded("behavior")
    return made


@pytest.mark.parametrize("name", ["oapl", "grpo", "rebel", "m2po"])
def test_masked_gradients_and_shares_do_not_depend_on_how_a_step_is_cut(
    model: Any, examples: Examples, name: str
) -> None:
    trainers = [
        trainer_of(optioned(name, **MASKED), model, examples, tokens_per_micro_batch=10**6),
        trainer_of(optioned(name, **MASKED), model, examples, tokens_per_micro_batch=64, packing="on"),
        trainer_of(optioned(name), model, examples, tokens_per_micro_batch=64),
    ]
    batch = trainers[0].batches(1)[0]
    whole, parted, plain = (one.step(batch, examples.lengths, 1e-3) for one in trainers)
    assert 0.05 < whole["masked_tokens_share"] < 0.95
    assert parted["masked_tokens_share"] == pytest.approx(whole["masked_tokens_share"], abs=1e-9)
    assert plain["masked_tokens_share"] is None
    assert plain["loss"] == pytest.approx(whole["loss"], rel=2e-5), "only gradients pass the masks"
    assert whole["grad_norm"] == pytest.approx(parted["grad_norm"], rel=2e-5)
    assert abs(plain["grad_norm"] / whole["grad_norm"] - 1) > 1e-3
    engines = [one.engine for one in trainers[:2]]
    assert all(isinstance(engine, CountingEngine) for engine in engines)
    first, second = (engine.gradients[0] for engine in engines)  # type: ignore[attr-defined]
    for key, gradient in first.items():
        largest = float(gradient.abs().max())
        torch.testing.assert_close(second[key], gradient, rtol=0, atol=2e-5 * largest + 1e-9)
