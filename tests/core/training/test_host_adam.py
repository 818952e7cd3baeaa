"""AdamW on the host: the fused kernel, by which an offloaded optimiser steps, and DeepSpeed's make the same step."""

import os
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch

from bench.host_adam import OfTorch, gap, ways
from oapl_core.settings.training import TrainingConfig
from oapl_core.training.engine import TrainingEngine
from oapl_core.training.model.logprobs import Policy
from tests.core.training.engine_session import model

BOUND = 0.02
"""Learning rates: a weight of 0.08, the largest, has a last digit of 7e-9, and the rate is 1e-6."""


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """An engine says in the environment that this process is a rank, which every later process would believe."""
    with patch.dict(os.environ):
        yield


def numbers(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and a gradient; a size that no vector register divides."""
    draw = torch.Generator().manual_seed(3)
    return torch.randn(size, generator=draw) * 0.02, torch.randn(size, generator=draw) * 1e-4


def test_the_fused_step_is_that_of_the_plain_loop_but_for_rounding() -> None:
    weights, gradient = numbers(100_003)
    plain, fused = OfTorch(weights, fused=False), OfTorch(weights, fused=True)
    for _ in range(3):
        plain.step(gradient)
        fused.step(gradient)
        assert gap(plain, fused) < BOUND
    assert float((plain.weights.detach() - weights).abs().max()) > 1e-6, "it moved"


@pytest.mark.slow
def test_deepspeeds_kernel_makes_the_same_first_step() -> None:
    weights, gradient = numbers(100_003)
    made = {name: way for name, way, _ in ways(weights)}
    assert "deepspeed" in made, "wants a C++ compiler"
    for way in made.values():
        way.step(gradient)
    assert gap(made["deepspeed"], made["loop"]) < BOUND


@pytest.mark.parametrize(("offload", "fused"), [("cpu", True), ("none", None)])
def test_an_offloaded_optimiser_steps_by_the_fused_kernel(
    monkeypatch: pytest.MonkeyPatch, offload: Any, fused: bool | None
) -> None:
    """On CPUs alone it stays the plain loop, whose digits were trained with before."""
    import deepspeed

    given: list[Any] = []

    def initialize(**options: Any) -> tuple[Any]:
        given.append(options["optimizer"])
        raise StopIteration

    monkeypatch.setattr(deepspeed, "initialize", initialize)

    def join(engine: TrainingEngine) -> None:
        engine.device, engine.ranks = torch.device("cpu"), 1

    monkeypatch.setattr(TrainingEngine, "_join", join)
    training = TrainingConfig(dtype="float32", zero_stage=2, offload_optimizer=offload)
    with pytest.raises(StopIteration):
        TrainingEngine(Policy(model()), training)
    assert given[0].defaults["fused"] is fused
