"""Arithmetic of a step, utilisation and time left."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from oapl_core.routes import Routing
from oapl_core.training.model.checkpoint import load_model
from oapl_core.training.speed import ModelFlops, Speedometer, known_tflops, matmul_tflops, peak_tflops
from tests.family_models import write_family
from tests.tiny_model import write_tiny_model

CPU = torch.device("cpu")


@pytest.mark.parametrize("tied", [True, False])
def test_flops_are_those_that_torch_counts(tmp_path: Path, tied: bool) -> None:
    """Against torch's own counter of a forward and backward pass; it sees every product and computes full squares."""
    from torch.utils.flop_counter import FlopCounterMode

    model = AutoModelForCausalLM.from_pretrained(
        write_tiny_model(tmp_path, hidden_size=64, tied=tied), attn_implementation="eager"
    )
    flops, length = ModelFlops.of(model), 96
    with FlopCounterMode(display=False) as counter:
        model(torch.ones(1, length, dtype=torch.long), use_cache=False).logits.sum().backward()
    full_squares = flops(length, length, 2 * length**2)
    assert full_squares == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_frozen_weights_need_no_gradient_of_their_own(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(write_tiny_model(tmp_path))
    trained = ModelFlops.of(model)
    frozen = ModelFlops.of(model.requires_grad_(False))
    assert frozen.token / trained.token == pytest.approx(4 / 6)
    assert frozen.response_token / trained.response_token == pytest.approx(4 / 6)


def test_a_token_goes_through_the_experts_that_it_is_sent_to_alone(tmp_path: Path) -> None:
    model = load_model(write_family(tmp_path, "qwen3-moe")).model
    routing = Routing.of(lambda name: getattr(model.config, name, None))
    assert routing
    assert (routing.top_k, routing.experts) == (2, 8)
    of_experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    ends = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    body = sum(p.numel() for p in model.parameters() if id(p) not in ends)
    assert 0 < of_experts < body
    assert ModelFlops.of(model).token == 6 * (body - of_experts * 3 / 4)


@pytest.mark.parametrize(
    ("name", "peaks"),
    [
        ("NVIDIA H100 80GB HBM3", [989.0, 67.0]),
        ("NVIDIA H100 PCIe", [756.0, 51.0]),
        ("NVIDIA A100-SXM4-80GB", [312.0, 19.5]),
        ("NVIDIA L40S", [362.0, 91.6]),
        ("NVIDIA L40", [181.0, 90.5]),
        ("NVIDIA L4", [121.0, 30.3]),
        ("A card of tomorrow", [None, None]),
    ],
)
def test_a_gpus_peak_is_known_by_the_drivers_name_for_it(name: str, peaks: list[float | None]) -> None:
    assert [known_tflops(name, "bfloat16"), known_tflops(name, "float32")] == peaks


def test_a_peak_is_stated_known_by_name_or_measured_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peak_tflops(3.5, "float32", CPU) == 3.5
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA H200")
    assert peak_tflops(None, "bfloat16", torch.device("cuda")) == 989.0
    measured = peak_tflops(None, "float32", CPU)
    assert measured is not None
    assert 1e-3 < measured < 100
    assert matmul_tflops(torch.float32, size=64, seconds=0.01) > 0


def test_utilisation_and_time_left_follow_from_the_step() -> None:
    speed = Speedometer(ModelFlops(10.0, 100.0, 1.0), peak=1e-9, ranks=2, steps=5)
    step = {"step": 3, "tokens": 100, "response_tokens": 10, "squared_tokens": 2000, "seconds": 4.0}
    assert speed(step) == pytest.approx({"tokens_per_s": 25.0, "mfu": 4000 / (1e3 * 2 * 4.0), "seconds_left": 8.0})
    assert speed(step | {"fast_steps": 3})["mfu"] == pytest.approx(4 * 4000 / (1e3 * 2 * 4.0)), "of four updates"
    speed = Speedometer(speed.flops, peak=1e-9, ranks=2, steps=5)
    speed(step)
    assert speed(step | {"step": 4, "seconds": 2.0})["seconds_left"] == 3.0
    assert Speedometer(ModelFlops(1.0, 1.0, 1.0), None, 1, 5)(step)["mfu"] is None
