"""Mixture of experts: blocks and routers are found by one rule, frozen where asked, and left alone by adapters.

ZeRO 3 on two ranks, and vLLM: docs/models.md, tests/core/test_families.py.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from oapl_core.errors import ConfigError
from oapl_core.settings.training import AdapterConfig
from oapl_core.training.model.adapters import add_adapter, merged_weights
from oapl_core.training.model.checkpoint import load_model
from oapl_core.training.model.experts import expert_blocks, freeze_routers, routers
from oapl_core.training.model.logprobs import Policy
from tests.family_models import FAMILIES, write_family

SPARSE = {"qwen3-moe": 2, "qwen3-next": 2, "mixtral": 2, "gpt-oss": 2, "deepseek-v3": 1}
"""Layers with experts, of two."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def loaded(root: Path, family: str) -> Any:
    folder = root / family
    return load_model(folder if folder.exists() else write_family(folder, family)).model


def gradients(policy: Policy) -> None:
    ids = torch.arange(60).reshape(3, 20)
    policy(ids, torch.tensor([2, 3, 4]), torch.tensor([20, 18, 20])).square().sum().backward()


@pytest.mark.slow_if(case=lambda given: given["family"] not in ("qwen3-moe", "deepseek-v3", "qwen3"))
@pytest.mark.parametrize("family", [*SPARSE, "qwen3", "gemma2"])
def test_every_block_of_experts_and_its_router_is_found(root: Path, family: str) -> None:
    model = loaded(root, family)
    assert len(expert_blocks(model)) == len(routers(model)) == SPARSE.get(family, 0)
    assert SPARSE.keys() == {name for name, (_, _, given) in FAMILIES.items() if any("experts" in key for key in given)}


@pytest.mark.slow_if(case=lambda given: given["family"] not in ("qwen3-moe", "deepseek-v3"))
@pytest.mark.parametrize("family", SPARSE)
def test_a_frozen_router_gets_no_gradient_and_all_else_does(root: Path, family: str) -> None:
    model = loaded(root, family)
    freeze_routers(model)
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    assert frozen
    assert all(".gate." in name or ".router." in name for name in frozen)
    policy = Policy(model)
    gradients(policy)
    for name, weight in Policy.model_weights(dict(policy.named_parameters())).items():
        assert (weight.grad is not None) == (name not in frozen), name


def test_a_model_without_experts_has_no_router_to_freeze(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"training.router = 'frozen': Qwen3ForCausalLM has 0 blocks of experts"):
        freeze_routers(loaded(root, "qwen3"))


@pytest.mark.slow_if(case=lambda given: given["family"] not in ("qwen3-moe", "deepseek-v3"))
@pytest.mark.parametrize("family", SPARSE)
def test_adapters_reach_neither_experts_nor_routers_and_merge_to_the_models_own_names(root: Path, family: str) -> None:
    model, adapter = loaded(root, family), AdapterConfig(rank=2)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    add_adapter(model, adapter, seed=0)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert all(".lora_" in name and ".experts." not in name and "lm_head" not in name for name in trained)
    assert any("self_attn" in name for name in trained)
    gradients(Policy(model))
    merged = merged_weights(model.state_dict(), adapter)
    assert merged.keys() == before.keys()
    assert all(torch.equal(weight.to(before[name].dtype), before[name]) for name, weight in merged.items())
