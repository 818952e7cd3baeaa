"""Scaled and softly capped logits: the form is found by asking the model, and log-probs, gradients, entropies use it.

Against the families' own forward pass and log_softmax, in float64 where the kernel is tried alone.
"""

from typing import Any

import pytest
import torch

from oapl_core.errors import ConfigError
from oapl_core.training.layouts.placing import response_mask
from oapl_core.training.model.logits import PLAIN, LogitForm, logit_form
from oapl_core.training.model.logprobs import Policy, token_logprobs
from tests.core.training.test_logprobs import scene

FORMS = (LogitForm(0.25), LogitForm(1.5), LogitForm(1.0, 30.0), LogitForm(0.5, 5.0))


def textbook(
    form: LogitForm, hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of ``ids`` and entropies."""
    z = hidden.double() @ weight.double().T * form.scale
    logits = z if form.cap is None else form.cap * torch.tanh(z / form.cap)
    logprobs = (logits / temperature).log_softmax(1)
    return logprobs.gather(1, ids[:, None]).squeeze(1), -(logprobs.exp() * logprobs).sum(1)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize(("temperature", "chunk"), [(1.0, 7), (0.6, 4096), (2.5, 1)])
def test_values_gradients_and_entropies_are_those_of_log_softmax(
    form: LogitForm, temperature: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oapl_core.training.model.logprobs.CPU_TILE", 200)  # several tiles of columns, too
    hidden, weight, ids, upstream = scene()
    entropy_T = torch.empty(len(ids))
    result = token_logprobs(hidden, weight, ids, temperature, chunk, entropy_T, form)
    result.backward(upstream)
    expected, entropies = textbook(form, hidden, weight, ids, temperature)
    torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-5)
    wanted = torch.autograd.grad(expected, (hidden, weight), upstream.double(), retain_graph=True)
    for ours, theirs in zip((hidden.grad, weight.grad), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6 * float(theirs.abs().max()))
    torch.testing.assert_close(entropy_T.double(), entropies.detach(), rtol=1e-5, atol=5e-5)


def test_a_capped_gradient_is_a_finite_difference() -> None:
    form, (hidden, weight, ids, upstream) = LogitForm(0.5, 5.0), scene()
    (token_logprobs(hidden, weight, ids, 0.8, 5, None, form) * upstream).sum().backward()
    step = 1e-6
    for leaf, at in ((hidden, (3, 2)), (weight, (int(ids[0]), 4))):
        totals = []
        for sign in (1, -1):
            moved = leaf.detach().double().clone()
            moved[at] += sign * step
            pair = (moved, weight.detach()) if leaf is hidden else (hidden.detach(), moved)
            totals.append(float((textbook(form, *pair, ids, 0.8)[0] * upstream).sum()))
        assert leaf.grad is not None
        assert float(leaf.grad[at]) == pytest.approx((totals[0] - totals[1]) / (2 * step), rel=1e-4, abs=1e-4)


# Families -------------------------------------------------------------------------------------------------------------


def family(config: str, sharpness: float = 1.0, **settings: Any) -> Any:
    """A random model of one layer."""
    import transformers

    sizes = dict.fromkeys(("hidden_size", "intermediate_size"), 32) | dict.fromkeys(
        ("num_attention_heads", "num_key_value_heads"), 2
    )
    made = getattr(transformers, config)(vocab_size=64, num_hidden_layers=1, **(sizes | settings))
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(made).eval()
    model.get_output_embeddings().weight.data.mul_(sharpness)
    return model


FAMILIES: dict[str, tuple[Any, LogitForm]] = {
    "Qwen3Config": ({"head_dim": 16}, PLAIN),
    "Gemma2Config": ({"head_dim": 16, "pad_token_id": 0}, LogitForm(1.0, 30.0)),
    "Gemma3TextConfig": ({"head_dim": 16, "final_logit_softcapping": 20.0}, LogitForm(1.0, 20.0)),
    "GraniteConfig": ({"logits_scaling": 8.0}, LogitForm(1 / 8)),
    "Cohere2Config": ({"logit_scale": 0.0625, "pad_token_id": 0}, LogitForm(0.0625)),
    "InklingTextConfig": ({"head_dim": 16}, LogitForm(1 / 24)),  # scales hidden states
    "GPT2Config": ({"n_embd": 32, "n_head": 2}, PLAIN),
    "OPTConfig": ({"word_embed_proj_dim": 32}, PLAIN),  # its forward pass calls a part of its backbone
    "MptConfig": ({"logit_scale": 0.5}, PLAIN),  # has such a setting and ignores it
}


@pytest.mark.parametrize("config", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_form_is_what_the_model_does(config: str, dtype: torch.dtype) -> None:
    settings, expected = FAMILIES[config]
    model = family(config, **settings).to(dtype)
    head = model.get_output_embeddings()
    assert logit_form(model) == expected
    assert model.get_output_embeddings() is head, "the model is as it was"
    assert "forward" not in vars(model.base_model)


@pytest.mark.parametrize("config", ["Gemma2Config", "Gemma3TextConfig", "GraniteConfig", "Cohere2Config"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_policy_has_the_log_probs_and_gradients_of_the_models_own_forward(config: str, packed: bool) -> None:
    ids = torch.tensor([[3, 9, 27, 17, 51, 25, 11], [5, 25, 61, 49, 53, 0, 0]])
    prompts, lengths = torch.tensor([2, 1]), torch.tensor([7, 5])
    wanted = response_mask(prompts, lengths, 7)
    own = family(config, 300.0, **FAMILIES[config][0])
    logits = own(ids, use_cache=False).logits[:, :-1]
    expected = (logits / 0.7).log_softmax(2).gather(2, ids[:, 1:, None]).squeeze(2)
    upstream = torch.arange(1.0, 13.0).reshape(2, 6) / 10
    (expected * upstream)[wanted].sum().backward()
    policy = Policy(family(config, 300.0, **FAMILIES[config][0]), 0.7, chunk=3, packed=packed)
    found = policy(ids, prompts, lengths)
    (found * upstream).sum().backward()
    assert expected[wanted].std() > 1, "capped and scaled logits differ from plain ones"
    torch.testing.assert_close(found[wanted], expected[wanted], rtol=1e-4, atol=1e-4)
    for name, weight in Policy.model_weights(dict(policy.named_parameters())).items():
        theirs = own.get_parameter(name).grad
        torch.testing.assert_close(weight.grad, theirs, rtol=0, atol=1e-4 * float(theirs.abs().max()))


# What is refused ------------------------------------------------------------------------------------------------------


def test_a_bias_is_refused() -> None:
    model = family("Qwen3Config", head_dim=16)
    model.set_output_embeddings(torch.nn.Linear(32, 64))
    with pytest.raises(ConfigError, match="Qwen3ForCausalLM: computes its logits with a bias"):
        Policy(model)


def test_an_output_layer_of_another_kind_is_refused() -> None:
    class Normed(torch.nn.Linear):
        pass

    model = family("Qwen3Config", head_dim=16)
    model.set_output_embeddings(Normed(32, 64, bias=False))
    with pytest.raises(ConfigError, match="an output layer of type Normed"):
        Policy(model)


@pytest.mark.parametrize("change", [lambda z: z + 1, lambda z: z.clamp(max=9.0), lambda z: -z, lambda z: z[..., :5]])
def test_logits_that_are_changed_in_another_way_are_refused(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = family("Qwen3Config", head_dim=16)
    plain = type(model).forward

    def forward(self: Any, *inputs: Any, **settings: Any) -> Any:
        outputs = plain(self, *inputs, **settings)
        outputs.logits = change(outputs.logits)
        return outputs

    monkeypatch.setattr(type(model), "forward", forward)
    with pytest.raises(ConfigError, match="in another way than by a scale and a soft cap"):
        Policy(model)


def test_hidden_states_that_are_changed_before_the_output_layer_are_refused() -> None:
    model = family("OPTConfig", word_embed_proj_dim=32)
    model.model.decoder.register_forward_hook(lambda _m, _i, out: type(out)(last_hidden_state=out[0].flip(-1)))
    model.model.register_forward_hook(lambda _m, _i, out: type(out)(last_hidden_state=out[0].flip(-1)))
    with pytest.raises(ConfigError, match="go through another layer"):
        Policy(model)
