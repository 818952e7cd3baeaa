"""Sequences in one row: log-probs as apart, when it is chosen, and models that mix neighbours refused."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from oapl_core.errors import ConfigError
from oapl_core.settings.training import TrainingConfig
from oapl_core.training.layouts import attention
from oapl_core.training.layouts.packing import refuse_leaks, use_packing
from oapl_core.training.layouts.placing import VARIABLE_LENGTH
from oapl_core.training.model.logprobs import Policy
from tests.core.training.made_round import made_groups, plain_logprobs
from tests.core.training.plain_engine import PlainEngine
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), sharpness=5.0)


def load(model_dir: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(model_dir)


def engine_of(model: Any) -> PlainEngine:
    return PlainEngine(Policy(model, packed=True), TrainingConfig())


@pytest.mark.parametrize("implementation", ["sdpa", "eager", VARIABLE_LENGTH])
def test_packed_log_probs_are_those_of_each_sequence_alone(model_dir: Path, implementation: str) -> None:
    rows, model = made_groups(model_dir, groups=3), load(model_dir)
    attention.give(model)
    model.set_attn_implementation(implementation)
    width = max(len(row["prompt_ids"] + row["response_ids"]) for row in rows)
    ids = torch.full((len(rows), width), 7)
    for s, row in enumerate(rows):
        whole = torch.tensor(row["prompt_ids"] + row["response_ids"])
        ids[s, : len(whole)] = whole
    prompts = torch.tensor([len(row["prompt_ids"]) for row in rows])
    lengths = prompts + torch.tensor([len(row["response_ids"]) for row in rows])
    found = Policy(model, packed=True)(ids, prompts, lengths).detach()
    for s, (row, expected) in enumerate(zip(rows, plain_logprobs(model_dir, rows), strict=True)):
        first, last = len(row["prompt_ids"]) - 1, len(row["prompt_ids"] + row["response_ids"]) - 1
        assert found[s, first:last].tolist() == pytest.approx(expected, abs=1e-5)
        assert torch.cat([found[s, :first], found[s, last:]]).abs().sum() == 0


def test_a_model_that_tells_its_neighbours_apart_is_accepted(model_dir: Path) -> None:
    model, rows = load(model_dir), list[tuple[str, tuple[int, ...]]]()

    def note(_module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        rows.append((model.config._attn_implementation, tuple(kwargs["input_ids"].shape)))

    attention.give(model)
    engine = engine_of(model)
    model.base_model.register_forward_pre_hook(note, with_kwargs=True)
    refuse_leaks(engine, vocabulary=300)
    together, *apart = rows
    assert together == (VARIABLE_LENGTH, (1, 12)), "as training packs them"
    assert apart == [("sdpa", (1, 6))] * 2 + [("eager", (1, 6))] * 2, "each by itself, as the model was published"
    assert model.config._attn_implementation == VARIABLE_LENGTH, "training goes on as it was checked"


@pytest.mark.parametrize("leak", ["use_cache", "attention_mask"])
def test_what_is_known_to_mix_neighbours_is_refused(model_dir: Path, leak: str) -> None:
    """The two silent failures: with a key-value cache or an all-ones mask, positions no longer part the sequences."""
    model = load(model_dir)

    def leaking(_module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        wrong = {"use_cache": True} if leak == "use_cache" else {"attention_mask": torch.ones_like(kwargs["input_ids"])}
        return args, kwargs | wrong

    model.base_model.register_forward_pre_hook(leaking, with_kwargs=True)
    with pytest.raises(ConfigError, match=r"change each other's log-probs by .* nats"):
        refuse_leaks(engine_of(model), vocabulary=300)


def test_a_model_without_positions_is_refused(model_dir: Path) -> None:
    model = load(model_dir)
    model.base_model.register_forward_pre_hook(
        lambda _module, args, kwargs: (args, kwargs | {"position_ids": None}), with_kwargs=True
    )
    with pytest.raises(ConfigError, match="set training.packing = 'off'"):
        refuse_leaks(engine_of(model), vocabulary=300)


def test_auto_packs_only_where_a_kernel_runs(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(model_dir)
    assert [use_packing(model, choice, torch.bfloat16) for choice in ("auto", "on", "off")] == [False, True, False]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert not use_packing(model, "auto", torch.float32)
    assert not use_packing(model, "off", torch.bfloat16)
    assert model.config._attn_implementation == "sdpa"
    assert use_packing(model, "auto", torch.bfloat16)
    assert model.config._attn_implementation == VARIABLE_LENGTH


def test_models_whose_attention_the_kernel_does_not_compute_do_not_get_it(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for change in ({"attn_logit_softcapping": 50.0}, {"head_dim": 512}):
        model = load(model_dir)
        for name, value in change.items():
            setattr(model.config, name, value)
        assert not use_packing(model, "auto", torch.bfloat16)
    model = load(model_dir)
    model.model.layers[0].self_attn.sinks = torch.nn.Parameter(torch.zeros(1))
    assert not use_packing(model, "auto", torch.bfloat16)


def test_a_kernel_that_computes_something_else_is_refused(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed rows agree with each other, yet not with the attention that the model was made with."""
    model, right = load(model_dir), attention._one_by_one
    attention.give(model)
    engine = engine_of(model)
    refuse_leaks(engine, vocabulary=300)
    monkeypatch.setattr(attention, "_one_by_one", lambda q, k, v, *rest: right(q, k, v.flip(2), *rest))
    with pytest.raises(ConfigError, match=r"change each other's log-probs by .* nats"):
        refuse_leaks(engine, vocabulary=300)


@pytest.mark.parametrize("kind", ["grouped", "windows"])
def test_variable_length_attention_has_the_plain_ones_values_and_gradients(kind: str) -> None:
    sizes = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "head_dim": 16}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    model: Any = (
        Qwen3ForCausalLM(Qwen3Config(**sizes, **heads))
        if kind == "grouped"
        else Gemma3ForCausalLM(Gemma3TextConfig(**sizes, **heads, sliding_window=5))
    )
    inputs = (torch.randint(3, 300, (4, 20)), torch.tensor([3, 2, 4, 1]), torch.tensor([20, 9, 15, 12]))
    found = []
    attention.give(model)
    for implementation in ("sdpa", VARIABLE_LENGTH):
        model.set_attn_implementation(implementation)
        model.zero_grad()
        scored = Policy(copy.deepcopy(model), packed=implementation == VARIABLE_LENGTH)
        logprob_ST = scored(*inputs)
        logprob_ST.square().sum().backward()
        found.append([logprob_ST.detach(), *(p.grad for p in scored.parameters() if p.grad is not None)])
    assert len(found[0]) == len(found[1])
    for plain, packed in zip(*found, strict=True):
        torch.testing.assert_close(packed, plain, rtol=1e-4, atol=1e-4)
