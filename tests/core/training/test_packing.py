"""Sequences in one row: log-probs as apart, when it is chosen, and models that mix neighbours refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from oapl_core.errors import ConfigError
from oapl_core.settings.training import TrainingConfig
from oapl_core.training.logprobs import Policy
from oapl_core.training.packing import refuse_leaks, use_packing
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


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_log_probs_are_those_of_each_sequence_alone(model_dir: Path, attention: str) -> None:
    rows, model = made_groups(model_dir, groups=3), load(model_dir)
    model.set_attn_implementation(attention)
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
    refuse_leaks(engine_of(load(model_dir)), vocabulary=300)


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


def test_auto_packs_only_where_flash_attention_runs(model_dir: Path) -> None:
    model = load(model_dir)
    assert [use_packing(model, choice, torch.float32) for choice in ("auto", "on", "off")] == [False, True, False]
    model.config._attn_implementation = "flash_attention_2"
    assert use_packing(model, "auto", torch.float32)
    assert not use_packing(model, "off", torch.float32)
