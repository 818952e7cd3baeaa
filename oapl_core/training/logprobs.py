"""Log-probabilities of given tokens under a causal language model, without the [tokens, vocabulary] matrix.

``TokenLogprobs`` takes the place of a model's output layer: hidden states and token ids go in, ln p(id | hidden) comes
out, float32 from float32 logits, ``chunk`` rows at a time. The forward pass keeps only the log-sum-exp of each row;
the backward pass recomputes a chunk's logits and turns them into gradients in place. The gradients are exact for any
upstream coefficient per token (what fused losses that compute them in the forward pass get wrong).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class _ChunkedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_TD: Tensor, weight_VD: Tensor, id_T: Tensor, temperature: float, chunk: int) -> Tensor:
        weight = weight_VD.float()
        lse_T = hidden_TD.new_empty(len(id_T), dtype=torch.float32)
        logprob_T = torch.empty_like(lse_T)
        for start in range(0, len(id_T), chunk):
            rows = slice(start, start + chunk)
            logits = hidden_TD[rows].float() @ weight.T
            if temperature != 1.0:
                logits /= temperature
            torch.logsumexp(logits, dim=1, out=lse_T[rows])
            logprob_T[rows] = logits.gather(1, id_T[rows, None]).squeeze(1) - lse_T[rows]
        ctx.save_for_backward(hidden_TD, weight_VD, id_T, lse_T)
        ctx.temperature, ctx.chunk = temperature, chunk
        return logprob_T

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        hidden_TD, weight_VD, id_T, lse_T = ctx.saved_tensors
        (gradient_T,) = upstream
        weight = weight_VD.float()
        hidden_gradient = torch.empty_like(hidden_TD) if ctx.needs_input_grad[0] else None
        weight_gradient = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for start in range(0, len(id_T), ctx.chunk):
            rows = slice(start, start + ctx.chunk)
            hidden = hidden_TD[rows].float()
            logits = hidden @ weight.T
            if ctx.temperature != 1.0:
                logits /= ctx.temperature
            scale = gradient_T[rows, None] / ctx.temperature
            # d ln p(id) / d logits = onehot(id) - softmax
            logits = logits.sub_(lse_T[rows, None]).exp_().mul_(-scale).scatter_add_(1, id_T[rows, None], scale)
            if hidden_gradient is not None:
                hidden_gradient[rows] = (logits @ weight).to(hidden_gradient.dtype)
            if weight_gradient is not None:
                weight_gradient.addmm_(logits.T, hidden)
        if weight_gradient is not None:
            weight_gradient = weight_gradient.to(weight_VD.dtype)
        return hidden_gradient, weight_gradient, None, None, None


def token_logprobs(
    hidden_TD: Tensor, weight_VD: Tensor, id_T: Tensor, temperature: float = 1.0, chunk: int = 4096
) -> Tensor:
    """ln softmax(hidden @ weight.T / temperature)[id] of each row, float32, shape [T].

    Args:
        hidden_TD: last hidden states, any float type.
        weight_VD: the output layer's matrix (it may be tied to the embeddings).
        id_T: token ids, int64, in [0, V).
        temperature: the temperature that the tokens were sampled with.
        chunk: rows whose logits exist at once; changes memory and speed, not the result beyond rounding.

    Raises:
        ValueError: shapes do not fit together, or ``temperature`` or ``chunk`` is not positive.
    """
    if hidden_TD.dim() != 2 or hidden_TD.shape[:1] != id_T.shape or hidden_TD.shape[1:] != weight_VD.shape[1:]:
        shapes = f"hidden {tuple(hidden_TD.shape)}, weight {tuple(weight_VD.shape)}, ids {tuple(id_T.shape)}"
        raise ValueError(f"shapes must be [T, D], [V, D] and [T], not {shapes}")
    if temperature <= 0 or chunk <= 0:
        raise ValueError(f"temperature and chunk must be positive, not {temperature} and {chunk}")
    result: Tensor = _ChunkedLogprobs.apply(hidden_TD, weight_VD, id_T, temperature, chunk)  # type: ignore[no-untyped-call]
    return result


class TokenLogprobs(nn.Module):
    """An output layer that answers with log-probs; it shares ``weight`` with the layer it replaces, tied or not."""

    def __init__(self, weight: nn.Parameter, temperature: float, chunk: int) -> None:
        """``weight`` is the replaced layer's own parameter, so checkpoints keep their names."""
        super().__init__()
        self.weight, self.temperature, self.chunk = weight, temperature, chunk

    def forward(self, hidden_TD: Tensor, id_T: Tensor) -> Tensor:
        """Log-probs of ``id_T``, [T]."""
        return token_logprobs(hidden_TD, self.weight, id_T, self.temperature, self.chunk)


# Config keys by which some architectures (Gemma 2, Granite, Cohere) transform logits after the output layer.
_LOGIT_SCALINGS = ("final_logit_softcapping", "logits_scaling", "logit_scale")


class Policy(nn.Module):
    """A Hugging Face causal model that scores right-padded rows of prompt + response.

    No attention mask is passed: causal attention never lets a token see the padding behind it, and both an all-ones
    mask and the key-value cache were seen to change log-probs.
    """

    def __init__(self, model: Any, temperature: float = 1.0, chunk: int = 4096) -> None:
        """Takes ``model`` over: its output layer is replaced.

        Raises:
            ValueError: the model computes its logits in another way than hidden @ weight.T.
        """
        super().__init__()
        head = model.get_output_embeddings()
        scalings = [key for key in _LOGIT_SCALINGS if getattr(model.config, key, None) not in (None, 1, 1.0)]
        if getattr(head, "bias", None) is not None or scalings:
            raise ValueError(f"{type(model).__name__}: logits with {', '.join(scalings) or 'a bias'} are not supported")
        model.set_output_embeddings(TokenLogprobs(head.weight, temperature, chunk))
        self.model = model

    @staticmethod
    def model_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The wrapped model's weights under its own names, from those of a ``Policy``."""
        return {name.removeprefix("model."): weight for name, weight in weights.items()}

    def forward(self, id_ST: Tensor, prompt_length_S: Tensor, length_S: Tensor) -> Tensor:
        """Log-probs of the response tokens, [S, T - 1]: column t scores token t + 1, other entries are exactly 0.

        Args:
            id_ST: prompt then response, right-padded with any valid id.
            prompt_length_S: tokens of the prompt, >= 1.
            length_S: tokens of prompt and response; what lies behind is padding.
        """
        hidden_STD = self.model.base_model(input_ids=id_ST, use_cache=False).last_hidden_state
        is_response_ST = response_mask(prompt_length_S, length_S, id_ST.shape[1])
        head = self.model.get_output_embeddings()
        logprob_T: Tensor = head(hidden_STD[:, :-1][is_response_ST], id_ST[:, 1:][is_response_ST])
        return logprob_T.new_zeros(is_response_ST.shape).masked_scatter(is_response_ST, logprob_T)


def response_mask(prompt_length_S: Tensor, length_S: Tensor, width: int) -> Tensor:
    """[S, width - 1], true in column t if token t + 1 belongs to the response: by stored length, never by token id."""
    position_T = torch.arange(1, width, device=length_S.device)
    return (position_T >= prompt_length_S[:, None]) & (position_T < length_S[:, None])
