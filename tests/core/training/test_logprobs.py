"""Per-token log-probs against log_softmax: values, gradients, temperature, chunks, tied weights, memory, padding.

The entropies that fall out of their backward pass: test_entropy.py.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from bench.output_rounding import tf32
from oapl_core.training.layouts.placing import response_mask
from oapl_core.training.model.logprobs import Policy, TokenLogprobs, token_logprobs
from tests.core.training.made_round import made_groups, plain_logprobs
from tests.tiny_model import write_tiny_model

T, D, V = 23, 16, 101


def scene(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(T, D, generator=generator).to(dtype).requires_grad_()
    weight = (3 * torch.randn(V, D, generator=generator)).to(dtype).requires_grad_()
    ids = torch.randint(0, V, (T,), generator=generator)
    return hidden, weight, ids, torch.randn(T, generator=generator)


def textbook(hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, temperature: float) -> torch.Tensor:
    logits = hidden.double() @ weight.double().T / temperature
    return logits.log_softmax(1).gather(1, ids[:, None]).squeeze(1)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.5])
@pytest.mark.parametrize("chunk", [1, 7, 23, 4096])
def test_values_and_gradients_are_those_of_log_softmax(temperature: float, chunk: int) -> None:
    hidden, weight, ids, upstream = scene()
    result = token_logprobs(hidden, weight, ids, temperature, chunk)
    result.backward(upstream)
    found = (hidden.grad, weight.grad)
    hidden.grad = weight.grad = None
    expected = textbook(hidden, weight, ids, temperature)
    expected.backward(upstream.double())
    torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-5)
    # the last digit of a logit of 80 is 8e-6, and so is the relative error of its probability
    torch.testing.assert_close(found[0], hidden.grad, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(found[1], weight.grad, rtol=1e-5, atol=1e-4)


class Tf32(TorchFunctionMode):
    """Products whose operands keep 10 bits behind the leading one, as tensor cores take them."""

    def __torch_function__(self, function: Any, _types: Any, inputs: Any = (), options: Any = None) -> Any:
        if getattr(function, "__name__", "") in ("addmm", "addmm_", "mm", "matmul", "__matmul__"):
            inputs = (*inputs[:-2], *map(tf32, inputs[-2:]))
        return function(*inputs, **(options or {}))


@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.5])
def test_on_tensor_cores_log_probs_of_16_bit_operands_are_exact_at_every_temperature(temperature: float) -> None:
    hidden, weight, ids, upstream = scene(torch.bfloat16)
    with Tf32():
        result = token_logprobs(hidden, weight, ids, temperature)
        result.backward(upstream)
    found = (hidden.grad, weight.grad)
    hidden.grad = weight.grad = None
    expected = textbook(hidden, weight, ids, temperature)
    expected.backward(upstream.double())
    torch.testing.assert_close(result.double(), expected, rtol=0, atol=2e-5)
    for one, leaf in zip(found, (hidden, weight), strict=True):
        other = leaf.grad
        assert one is not None
        assert other is not None
        # stored in bfloat16, which is 0.17 % by itself
        assert (one.double() - other.double()).norm() / other.double().norm() < 4e-3


def test_gradient_is_a_finite_difference() -> None:
    hidden, weight, ids, upstream = scene()
    (token_logprobs(hidden, weight, ids, 0.8, 5) * upstream).sum().backward()
    step = 1e-6
    for leaf, at in ((hidden, (3, 2)), (weight, (int(ids[0]), 4)), (weight, (100, 0))):
        with torch.no_grad():
            totals = []
            for sign in (1, -1):
                moved = leaf.double().clone()
                moved[at] += sign * step
                pair = (moved, weight) if leaf is hidden else (hidden, moved)
                totals.append(float((textbook(*pair, ids, 0.8) * upstream).sum()))
        assert leaf.grad is not None
        assert float(leaf.grad[at]) == pytest.approx((totals[0] - totals[1]) / (2 * step), rel=1e-4, abs=1e-4)


def test_low_precision_inputs_still_give_float32_log_probs() -> None:
    hidden, weight, ids, upstream = scene(torch.bfloat16)
    result = token_logprobs(hidden, weight, ids, chunk=8)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), textbook(hidden, weight, ids, 1.0), rtol=1e-5, atol=1e-5)
    result.backward(upstream)
    assert hidden.grad is not None
    assert hidden.grad.dtype == torch.bfloat16


def test_a_frozen_weight_gets_no_gradient() -> None:
    hidden, weight, ids, upstream = scene()
    weight.requires_grad = False
    token_logprobs(hidden, weight, ids).backward(upstream)
    assert weight.grad is None
    assert hidden.grad is not None


def test_no_tensor_of_tokens_times_vocabulary_is_ever_allocated() -> None:
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            sizes = [x.numel() for x in torch.utils._pytree.tree_leaves(out) if isinstance(x, torch.Tensor)]
            largest = max([largest, *sizes])
            return out

    hidden, weight, ids, upstream = scene()
    with Watch():  # type: ignore[no-untyped-call]
        token_logprobs(hidden, weight, ids, chunk=4).backward(upstream)
    assert largest == V * D  # the weight; a chunk's logits are 4 x V
    assert largest < T * V


@pytest.mark.parametrize(
    ("hidden", "weight", "ids"), [((3, 4), (9, 5), (3,)), ((3, 4), (9, 4), (2,)), ((1, 3, 4), (9, 4), (3,))]
)
def test_shapes_that_do_not_fit_are_refused(hidden: Any, weight: Any, ids: Any) -> None:
    with pytest.raises(ValueError, match="shapes must be"):
        token_logprobs(torch.zeros(hidden), torch.zeros(weight), torch.zeros(ids, dtype=torch.int64))


@pytest.mark.parametrize(("temperature", "chunk"), [(0.0, 1), (-1.0, 1), (1.0, 0)])
def test_impossible_temperatures_and_chunks_are_refused(temperature: float, chunk: int) -> None:
    hidden, weight, ids, _ = scene()
    with pytest.raises(ValueError, match="must be positive"):
        token_logprobs(hidden, weight, ids, temperature, chunk)


def test_the_response_mask_goes_by_stored_length() -> None:
    mask = response_mask(torch.tensor([2, 1]), torch.tensor([4, 5]), width=5)
    # column t scores token t + 1
    assert mask.tolist() == [[False, True, True, False], [True, True, True, True]]


# A whole model -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), sharpness=5.0)


def load(model_dir: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_dir)


def padded(rows: list[dict[str, Any]], width: int, filler: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ids = torch.full((len(rows), width), filler)
    for s, row in enumerate(rows):
        whole = row["prompt_ids"] + row["response_ids"]
        ids[s, : len(whole)] = torch.tensor(whole)
    prompts = torch.tensor([len(row["prompt_ids"]) for row in rows])
    return ids, prompts, prompts + torch.tensor([len(row["response_ids"]) for row in rows])


@pytest.mark.parametrize(("width", "filler"), [(32, 0), (60, 2), (60, 7)])
def test_neither_padding_nor_neighbours_change_a_response(model_dir: Path, width: int, filler: int) -> None:
    rows = made_groups(model_dir, groups=3)
    logprob_ST = Policy(load(model_dir), chunk=11)(*padded(rows, width, filler)).detach()
    for s, (row, expected) in enumerate(zip(rows, plain_logprobs(model_dir, rows), strict=True)):
        first, last = len(row["prompt_ids"]) - 1, len(row["prompt_ids"]) + len(row["response_ids"]) - 1
        assert logprob_ST[s, first:last].tolist() == pytest.approx(expected, abs=1e-5)
        outside = torch.cat([logprob_ST[s, :first], logprob_ST[s, last:]])
        assert outside.abs().sum() == 0


def test_tied_embeddings_get_the_gradient_of_both_uses(model_dir: Path) -> None:
    rows = made_groups(model_dir, groups=2)
    ids, prompts, lengths = padded(rows, 32, 0)
    ours = Policy(load(model_dir), chunk=5)
    (ours(ids, prompts, lengths) ** 2).sum().backward()  # a coefficient of its own for each token
    plain = load(model_dir)
    logprob_ST = plain(ids, use_cache=False).logits[:, :-1].log_softmax(2).gather(2, ids[:, 1:, None]).squeeze(2)
    (logprob_ST[response_mask(prompts, lengths, 32)] ** 2).sum().backward()
    assert plain.lm_head.weight is plain.model.embed_tokens.weight
    found = Policy.model_weights(dict(ours.named_parameters()))
    expected = dict(plain.named_parameters())
    assert found.keys() == expected.keys()
    for name, parameter in expected.items():
        # float32 sums in another order: an entry is off by up to 1e-5 of the largest ones, whatever its own size
        largest = parameter.grad.abs().max().item()
        torch.testing.assert_close(found[name].grad, parameter.grad, rtol=0, atol=1e-5 * largest)


def test_the_policy_keeps_the_models_names_and_its_tied_weight(model_dir: Path) -> None:
    model = load(model_dir)
    before = model.state_dict().keys()
    policy = Policy(model)
    assert Policy.model_weights(policy.state_dict()).keys() == before
    assert isinstance(model.lm_head, TokenLogprobs)
    assert model.lm_head.weight is model.model.embed_tokens.weight
