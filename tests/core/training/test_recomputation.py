"""What is computed again in the backward pass changes no gradient by a bit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, OPTConfig, OPTForCausalLM, Qwen3Config, Qwen3ForCausalLM

from oapl_core.errors import ConfigError
from oapl_core.planning.model_size import ModelSize
from oapl_core.planning.recomputation import CHOICES, Recomputation, recomputed_share
from oapl_core.training.layouts.packing import use_packing
from oapl_core.training.model.logprobs import Policy
from oapl_core.training.model.recomputation import recompute
from tests.core.training.made_round import made_groups, make_run, train_in_a_process, write_groups
from tests.tiny_model import write_tiny_model

IDS = torch.randint(5, 300, (3, 40), generator=torch.Generator().manual_seed(1))
PROMPT, LENGTH = torch.tensor([3, 9, 1]), torch.tensor([40, 31, 12])


def found(model: Any, choice: Recomputation, packed: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probs and gradients of three sequences."""
    recompute(model, choice)
    policy = Policy(model, packed=packed)
    logprob_ST = policy(IDS, PROMPT, LENGTH)
    (logprob_ST * torch.linspace(-1, 1, logprob_ST.numel()).view_as(logprob_ST)).sum().backward()
    return logprob_ST.detach(), {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), hidden_size=64, layers=4, sharpness=4.0)


@pytest.mark.parametrize("way", ["padded", "packed", "bfloat16"])
def test_every_choice_has_the_same_log_probs_and_gradients_to_the_bit(model_dir: Path, way: str) -> None:
    dtype = torch.bfloat16 if way == "bfloat16" else torch.float32

    def of(choice: Recomputation) -> tuple[Tensor, dict[str, Tensor]]:
        model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype)
        return found(model, choice, way == "packed" and use_packing(model, "on", dtype))

    logprob_ST, gradients = of("none")
    for choice in CHOICES[1:]:
        again_ST, recomputed = of(choice)
        assert torch.equal(logprob_ST, again_ST)
        assert gradients.keys() == recomputed.keys()
        assert all(torch.equal(gradients[name], recomputed[name]) for name in gradients), choice


def test_the_attention_is_computed_once_where_its_output_is_kept(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted where the operator runs: in each of four layers, forwards and where it is repeated."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counted(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.times = 0

        def __torch_dispatch__(self, function: Any, _types: Any, inputs: Any = (), options: Any = None) -> Any:
            self.times += function is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
            return function(*inputs, **(options or {}))

    counts = {}
    for choice in ("none", "attention", 2, "all"):
        with Counted() as counted:
            found(AutoModelForCausalLM.from_pretrained(model_dir), choice)
        counts[choice] = counted.times
    assert counts == {"none": 4, "attention": 4, 2: 6, "all": 8}


def test_nothing_is_dropped_where_layers_are_recomputed() -> None:
    """Dropout belongs to a pretraining; transformers recomputes in its training mode only."""
    shape = {"vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}

    def qwen() -> Any:
        torch.manual_seed(0)
        more = {"num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 96}
        return Qwen3ForCausalLM(Qwen3Config(**shape, **more, attention_dropout=0.3))

    def opt() -> Any:
        torch.manual_seed(0)
        more = {"ffn_dim": 96, "word_embed_proj_dim": 64, "max_position_embeddings": 64}
        return OPTForCausalLM(OPTConfig(**shape, **more, dropout=0.3, layerdrop=0.3))

    for make in (qwen, opt):
        logprob_ST, gradients = found(make().eval(), "none")
        again_ST, recomputed = found(make().eval(), "all")
        assert torch.equal(logprob_ST, again_ST)
        assert all(torch.equal(gradients[name], recomputed[name]) for name in gradients)


def test_a_model_whose_layers_cannot_be_recomputed_is_named(model_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    type(model).supports_gradient_checkpointing, before = False, type(model).supports_gradient_checkpointing
    try:
        with pytest.raises(
            ConfigError, match="training.recompute = 2: Qwen3ForCausalLM cannot compute its layers again"
        ):
            recompute(model, 2)
    finally:
        type(model).supports_gradient_checkpointing = before


def test_long_sequences_make_the_attention_worth_keeping() -> None:
    four = ModelSize(4.02e9, 36, 4096, 1024, 2560, 9728, 151_936)
    assert [recomputed_share(choice, four, 1000) for choice in ("none", 8, 4, 2, "all")] == [0, 5 / 36, 1 / 4, 1 / 2, 1]
    shares = [recomputed_share("attention", four, tokens) for tokens in (0, 1000, 10_000, 100_000)]
    assert shares[0] == 1
    assert sorted(shares, reverse=True) == shares
    assert shares[-1] < 0.3


@pytest.mark.slow
def test_divided_weights_that_come_and_go_are_trained_to_the_same_bits(tmp_path: Path, model_dir: Path) -> None:
    rows = made_groups(model_dir)
    exported = []
    for choice in ("none", "attention"):
        run = make_run(tmp_path / choice, model_dir, epochs=1, zero_stage=3, recompute=choice)
        write_groups(run, rows)
        train_in_a_process(run)
        exported.append((run.checkpoint(0, 1) / "model.safetensors").read_bytes())
    assert exported[0] == exported[1]
