"""The exact entropy that falls out of the log-probs' backward pass, against NumPy over the whole softmax.

Of a step, however it is cut: test_steps.py; on several ranks, packed, and where ranks share sequences: test_splits.py
and test_sequence_parallel.py.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from oapl_core.settings.training import AdapterConfig
from oapl_core.training.model.adapters import add_adapter
from oapl_core.training.model.logprobs import Policy, token_logprobs
from tests.core.training.made_round import made_groups, plain_entropies
from tests.core.training.test_logprobs import D, T, V, padded
from tests.core.training.test_logprobs import scene as sharp_scene


def scene(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of up to 30, as language models have them."""
    hidden, weight, ids, upstream = sharp_scene(dtype)
    weight.data.mul_(0.5)
    return hidden, weight, ids, upstream


def measured(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    ids: torch.Tensor,
    upstream: torch.Tensor,
    temperature: float = 1.0,
    chunk: int = 4096,
) -> list[float]:
    entropy_T = torch.full((len(ids),), torch.nan)
    token_logprobs(hidden, weight, ids, temperature, chunk, entropy_T).backward(upstream)
    found: list[float] = entropy_T.tolist()
    return found


def textbook(hidden: torch.Tensor, weight: torch.Tensor, temperature: float = 1.0) -> list[float]:
    logits = hidden.detach().double().numpy() @ weight.detach().double().numpy().T / temperature
    softmax = np.exp(logits - logits.max(1, keepdims=True))
    softmax /= softmax.sum(1, keepdims=True)
    found: list[float] = -np.where(softmax > 0, softmax * np.log(np.maximum(softmax, 1e-300)), 0).sum(1)
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.5])
@pytest.mark.parametrize("chunk", [1, 7, 23, 4096])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_that_of_the_whole_softmax(temperature: float, chunk: int, dtype: torch.dtype) -> None:
    hidden, weight, ids, upstream = scene(dtype)
    found = measured(hidden, weight, ids, upstream, temperature, chunk)
    assert found == pytest.approx(textbook(hidden, weight, temperature), abs=1e-5)


def test_uniform_logits_have_the_logarithm_of_the_vocabulary() -> None:
    _, weight, ids, upstream = scene()
    hidden = torch.zeros(T, D, requires_grad=True)
    assert measured(hidden, weight, ids, upstream) == pytest.approx([math.log(V)] * T, abs=1e-6)


def test_two_likely_tokens_of_three_have_ln_2_and_a_sure_one_has_none() -> None:
    weight = torch.tensor([[50.0, 50.0], [50.0, -50.0], [-50.0, -50.0]])
    hidden = torch.tensor([[1.0, 0.0], [1.0, 1.0]], requires_grad=True)
    found = measured(hidden, weight, torch.tensor([2, 1]), torch.ones(2))
    assert found == pytest.approx([math.log(2), 0.0], abs=1e-5)
    assert min(found) >= 0.0


def test_large_logits_that_all_rows_share_do_not_drown_it() -> None:
    """Where the vocabulary's vectors point the same way, logits lie around 60; their rounding alone is 4e-6."""
    generator = torch.Generator().manual_seed(1)
    shared = torch.full((1, 64), 1.0)
    hidden = (shared + 0.3 * torch.randn(T, 64, generator=generator)).requires_grad_()
    weight = shared + 0.3 * torch.randn(4096, 64, generator=generator)
    ids = torch.randint(0, 4096, (T,), generator=generator)
    found, expected = measured(hidden, weight, ids, torch.ones(T)), textbook(hidden, weight)
    assert found == pytest.approx(expected, abs=5e-5)
    assert np.mean(found) == pytest.approx(np.mean(expected), abs=5e-6)


@pytest.mark.parametrize("factor", [0.0, -3.0])
def test_it_does_not_depend_on_what_the_objective_asks_for(factor: float) -> None:
    hidden, weight, ids, upstream = scene()
    found = measured(hidden, weight, ids, factor * upstream)
    assert found == pytest.approx(textbook(hidden, weight), abs=1e-5)
    weight.requires_grad = False
    assert measured(hidden, weight, ids, upstream) == found
    weight.requires_grad, hidden.requires_grad = True, False
    assert measured(hidden, weight, ids, upstream) == found


def test_measuring_it_changes_no_gradient_and_no_log_prob() -> None:
    results = []
    for entropy_T in (None, torch.empty(T)):
        hidden, weight, ids, upstream = scene()
        logprob_T = token_logprobs(hidden, weight, ids, 0.7, 7, entropy_T)
        logprob_T.backward(upstream)
        assert entropy_T is None or not entropy_T.requires_grad
        results.append((logprob_T, hidden.grad, weight.grad))
    for without, with_it in zip(*results, strict=True):
        assert torch.equal(without, with_it)


# A whole model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("adapted", [False, True])
def test_a_policy_knows_it_of_every_response_token(sharp_model: Path, packed: bool, adapted: bool) -> None:
    rows = made_groups(sharp_model, groups=3)
    model = AutoModelForCausalLM.from_pretrained(sharp_model)
    if adapted:
        add_adapter(model, AdapterConfig(rank=2), seed=0)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    policy = Policy(model, temperature=0.7, chunk=11, packed=packed)
    inputs = padded(rows, 60, 7)
    loss = policy(*inputs).square().sum()
    assert policy.entropy_T.isnan().all(), "known after the backward pass"
    loss.backward()
    expected = [entropy for of_row in plain_entropies(sharp_model, rows, 0.7) for entropy in of_row]
    assert policy.entropy_T.tolist() == pytest.approx(expected, abs=1e-5)
    with torch.no_grad():
        policy(*(part[:1] for part in inputs))
    assert len(policy.entropy_T) == len(expected), "a pass without a gradient leaves it alone"
