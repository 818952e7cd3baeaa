"""Log-probabilities of given tokens under a causal language model, without the [tokens, vocabulary] matrix.

``TokenLogprobs`` takes the place of a model's output layer. Hidden states and token ids go in, ln p(id | hidden) comes
out, float32 from float32 logits. Logits exist a tile at a time, some rows by some columns of the vocabulary. The
forward pass keeps only the log-sum-exp of each row, joined over the tiles; the backward pass recomputes a tile. A tile
costs its products and one pass of exponentials. Factors that depend on the row alone are applied to the rows' own,
narrow tensors. Streaming over the vocabulary outside and over rows inside, each part of the matrix is converted once
and its gradient is written once. The gradients are exact for any upstream coefficient per token, unlike those of fused
losses that compute them in the forward pass. Logits may be scaled and softly capped (``logits.py``). A scale is a
temperature, a cap costs one pass of tanh and a second tile in the backward pass.

The exact entropy of the distribution at each row falls out of the backward pass, with z for the logits:

    d ln p(id) / d hidden = (w_id - sum_v p_v w_v) / temperature
    H = -sum_v p_v ln p_v = -ln p(id) + z_id - sum_v p_v z_v

The product of the first line with the row's own hidden state is z_id - sum_v p_v z_v. So the entropy costs a sum over
each tile and a dot product of each row, no further tile. Softly capped logits are no products with the hidden state:
there the entropy is summed.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from oapl_core.settings.training import CPU_TILE, GPU_TILE
from oapl_core.training.layouts.batching import Deal, packed, padded
from oapl_core.training.layouts.placing import VARIABLE_LENGTH, bounds, places, response_mask, sent, spread
from oapl_core.training.model.logits import PLAIN, LogitForm, logit_form


def _tiles(tokens: int, vocabulary: int, chunk: int, device: torch.device) -> Iterator[tuple[slice, list[slice]]]:
    """Return the columns of the vocabulary, each with the rows to go through: at most ``chunk`` rows, a tile's worth of
    logits.
    """
    rows = max(1, min(chunk, tokens))
    # a tile's size is what matters to caches and memory: fewer rows leave room for more columns
    columns = max(1, min(vocabulary, (CPU_TILE if device.type == "cpu" else GPU_TILE) // rows))
    parts = [slice(start, min(start + rows, tokens)) for start in range(0, tokens, rows)]
    return ((slice(at, min(at + columns, vocabulary)), parts) for at in range(0, vocabulary, columns))


def _place(id_T: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    """Find for each id its column in the tile, [T, 1], and whether it lies there, [T]."""
    inside_T = (id_T >= columns.start) & (id_T < columns.stop)
    return (id_T - columns.start).clamp(0, columns.stop - columns.start - 1)[:, None], inside_T


@contextmanager
def tensor_cores(weight: Tensor) -> Iterator[None]:
    """Allow TF32 in products with a bfloat16 ``weight`` on a GPU, and restore what was set.

    TF32 keeps 10 bits behind the leading one, bfloat16 has 7: logits stay exact products, summed in float32. In the
    gradients softmax and coefficients are rounded to 10 bits before the result is rounded to bfloat16's 7.
    """
    if not (weight.is_cuda and weight.dtype == torch.bfloat16):
        yield
        return
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


class _StreamedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_TD: Tensor,
        weight_VD: Tensor,
        id_T: Tensor,
        temperature: float,
        chunk: int,
        entropy_T: Tensor | None,
        cap: float | None,
    ) -> Tensor:
        hidden = hidden_TD.float()  # a product of 16-bit floats would round logits to two or three digits
        largest_T = hidden.new_full((len(id_T),), -torch.inf)  # largest of the logits seen so far
        sum_T, own_T = torch.zeros_like(largest_T), torch.zeros_like(largest_T)
        for columns, parts in _tiles(len(id_T), len(weight_VD), chunk, hidden.device):
            weight = weight_VD[columns].float()
            for rows in parts:
                # the temperature goes into the product's result: weights divided by it would have more digits than TF32
                logits = torch.addmm(largest_T[rows, None], hidden[rows], weight.T, beta=0, alpha=1 / temperature)
                if cap is not None:
                    logits.div_(cap).tanh_().mul_(cap)
                place, inside = _place(id_T[rows], columns)
                own_T[rows] = torch.where(inside, logits.gather(1, place)[:, 0], own_T[rows])
                largest = torch.maximum(largest_T[rows], logits.amax(1))
                # a sum over earlier tiles was taken relative to an earlier maximum
                sum_T[rows] *= (largest_T[rows] - largest).exp_()
                sum_T[rows] += logits.sub_(largest[:, None]).exp_().sum(1)
                largest_T[rows] = largest
        lse_T = largest_T + sum_T.log()
        ctx.save_for_backward(hidden_TD, weight_VD, id_T, own_T, lse_T)
        ctx.temperature, ctx.chunk, ctx.entropy_T, ctx.cap = temperature, chunk, entropy_T, cap
        return own_T - lse_T

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        with tensor_cores(ctx.saved_tensors[1]):
            return _gradients(ctx, upstream[0])


def _gradients(ctx: Any, upstream_T: Tensor) -> tuple[Tensor | None, ...]:
    """Compute d ln p(id) / d logits = onehot(id) - softmax; the upstream factor of a row waits for the small
    products.
    """
    hidden_TD, weight_VD, id_T, own_T, lse_T = ctx.saved_tensors
    hidden, down_T1, cap = hidden_TD.float(), -upstream_T[:, None], ctx.cap
    scaled, excess_T = hidden * (down_T1 / ctx.temperature), torch.zeros_like(lse_T)
    pull_T = torch.zeros_like(lse_T)  # sum_v p_v z_v - z_id
    is_measured, scale = ctx.entropy_T is not None, 1 / ctx.temperature
    hidden_gradient = torch.zeros_like(hidden) if ctx.needs_input_grad[0] or is_measured else None
    weight_gradient = torch.empty_like(weight_VD) if ctx.needs_input_grad[1] else None
    for columns, parts in _tiles(len(id_T), len(weight_VD), ctx.chunk, hidden.device):
        weight = weight_VD[columns].float()
        total = torch.zeros_like(weight)
        for rows in parts:
            # logits; without a cap less their log-sum-exp, at no cost
            tile = torch.addmm(lse_T[rows, None], hidden[rows], weight.T, beta=-1 if cap is None else 0, alpha=scale)
            bent = None if cap is None else tile.div_(cap).tanh_()
            if bent is None:
                softmax = tile.exp_()
            else:
                softmax = (bent * cap).sub_(lse_T[rows, None]).exp_()
            place, inside = _place(id_T[rows], columns)
            # softmax - onehot in place; rows whose id lies in another tile add 0
            softmax.scatter_add_(1, place, -inside[:, None].to(softmax.dtype))
            if is_measured:
                excess_T[rows] += softmax.sum(1)
            if bent is not None:
                pull_T[rows] += cap * torch.linalg.vecdot(softmax, bent)
                softmax.mul_(bent.square_().neg_().add_(1))  # the slope of the cap
            if hidden_gradient is not None:
                hidden_gradient[rows].addmm_(softmax, weight, alpha=scale)
            if weight_gradient is not None:
                total.addmm_(softmax.T, scaled[rows])
        if weight_gradient is not None:
            weight_gradient[columns] = total
    if hidden_gradient is not None and is_measured:
        if cap is None:
            pull_T = torch.linalg.vecdot(hidden, hidden_gradient)
        ctx.entropy_T.copy_(_entropy(pull_T, own_T, lse_T, excess_T))
    if hidden_gradient is not None:
        hidden_gradient = hidden_gradient.mul_(down_T1).to(hidden_TD.dtype)
    return hidden_gradient, weight_gradient, None, None, None, None, None


def _entropy(pull_T: Tensor, own_T: Tensor, lse_T: Tensor, excess_T: Tensor) -> Tensor:
    """Compute the entropy of each row, nats.

    Args:
        pull_T: sum_v p_v z_v - z_id, of logits z.
        own_T: logit of the row's id.
        lse_T: log-sum-exp of the row's logits.
        excess_T: what rounding made of sum_v p_v - 1; times a large logit it would be seen.
    """
    above_T = pull_T - excess_T * own_T  # sum_v p_v (z_v - z_id)
    entropy_T: Tensor = lse_T - own_T - above_T / (1 + excess_T)
    return entropy_T.clamp_(min=0)


def token_logprobs(
    hidden_TD: Tensor,
    weight_VD: Tensor,
    id_T: Tensor,
    temperature: float = 1.0,
    chunk: int = 4096,
    entropy_T: Tensor | None = None,
    form: LogitForm = PLAIN,
) -> Tensor:
    """Return ln softmax(form(hidden @ weight.T) / temperature)[id] of each row, float32, shape [T].

    Args:
        hidden_TD: last hidden states, any float type.
        weight_VD: the output layer's matrix (it may be tied to the embeddings).
        id_T: token ids, int64, in [0, V).
        temperature: the temperature that the tokens were sampled with.
        chunk: rows whose logits exist at once; changes memory and speed, not the result beyond rounding.
        entropy_T: float32; if given, the backward pass writes into it the entropy of each row's distribution, nats,
            whatever the upstream coefficients are. No gradient goes through it.
        form: what the model makes of the products of its output layer.

    Raises:
        ValueError: shapes do not fit together, or ``temperature`` or ``chunk`` is not positive.
    """
    if hidden_TD.dim() != 2 or hidden_TD.shape[:1] != id_T.shape or hidden_TD.shape[1:] != weight_VD.shape[1:]:
        shapes = f"hidden {tuple(hidden_TD.shape)}, weight {tuple(weight_VD.shape)}, ids {tuple(id_T.shape)}"
        raise ValueError(f"shapes must be [T, D], [V, D] and [T], not {shapes}")
    if temperature <= 0 or chunk <= 0:
        raise ValueError(f"temperature and chunk must be positive, not {temperature} and {chunk}")
    cap = None if form.cap is None else form.cap / temperature
    with tensor_cores(weight_VD):
        result: Tensor = _StreamedLogprobs.apply(  # type: ignore[no-untyped-call]
            hidden_TD, weight_VD, id_T, temperature / form.scale, chunk, entropy_T, cap
        )
    return result


class TokenLogprobs(nn.Module):
    """An output layer that answers with log-probs; it shares ``weight`` with the layer it replaces, tied or not."""

    entropy_T: Tensor
    """Entropies of the rows that were last scored with a gradient, nats: NaN until their backward pass has gone by."""

    def __init__(self, weight: nn.Parameter, temperature: float, chunk: int, form: LogitForm = PLAIN) -> None:
        """Keep the settings; ``weight`` is the replaced layer's own parameter, so checkpoints keep their names."""
        super().__init__()
        self.weight, self.temperature, self.chunk, self.form = weight, temperature, chunk, form
        self.entropy_T = torch.empty(0)

    def forward(self, hidden_TD: Tensor, id_T: Tensor) -> Tensor:
        """Return the log-probs of ``id_T``, [T]."""
        if not torch.is_grad_enabled():
            return token_logprobs(hidden_TD, self.weight, id_T, self.temperature, self.chunk, None, self.form)
        # not-a-number until the backward pass has filled it: a number that was never measured would look like one
        self.entropy_T = torch.full(id_T.shape, torch.nan, dtype=torch.float32, device=id_T.device)
        return token_logprobs(hidden_TD, self.weight, id_T, self.temperature, self.chunk, self.entropy_T, self.form)


class Policy(nn.Module):
    """A Hugging Face causal model that scores right-padded rows of prompt + response.

    No attention mask is passed: causal attention never lets a token see the padding behind it. Both an all-ones mask
    and the key-value cache were seen to change log-probs. If ``packed``, the model gets all of them as one row without
    padding, told apart by their positions (``packing.py``).
    """

    shares_prompts = False
    """Whether a prompt is computed once for all answers to it (``shared_prompts.py``)."""
    device: torch.device | None = None
    """Where the model computes; unset: where the inputs lie."""
    holders: Sequence[Any] = ()
    """Holders of the numbers of tokens that ``forward`` is given, by column (``oapl_core/token_columns.py``)."""

    def __init__(self, model: Any, temperature: float = 1.0, chunk: int = 4096, packed: bool = False) -> None:
        """Takes ``model`` over: its output layer is replaced.

        Raises:
            ConfigError: the model computes its logits in a way that is not known (``logits.py``).
        """
        super().__init__()
        form, weight = logit_form(model), model.get_output_embeddings().weight
        model.set_output_embeddings(TokenLogprobs(weight, temperature, chunk, form))
        self.model, self.packed = model, packed

    def deal(self, prompts: Sequence[tuple[int, int]]) -> Deal:
        """Return how the sequences of a step, of these ``prompts`` (``Examples.prompts``), are dealt to ranks."""
        return packed if self.packed else padded

    def repeated(self, rows: Sequence[int], prompts: Sequence[tuple[int, int]]) -> list[int]:
        """Return the tokens of each prompt of a micro-batch that is not computed, as another row has it."""
        return []

    @property
    def entropy_T(self) -> Tensor:
        """Entropy of the policy's distribution at each scored token, in the order of ``score``: nats, float32.

        Of the last forward pass with a gradient, after its backward pass; before it NaN.
        """
        entropy_T: Tensor = self.model.get_output_embeddings().entropy_T
        return entropy_T

    @staticmethod
    def model_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename the weights of a ``Policy`` to the wrapped model's own names."""
        return {name.removeprefix("model."): weight for name, weight in weights.items()}

    def forward(
        self, id_ST: Tensor, prompt_length_S: Tensor, length_S: Tensor, columns: Any = None, sampled_ST: Any = None
    ) -> Tensor:
        """Return the log-probs of the response tokens, [S, T - 1]: column t scores token t + 1, other entries are
        exactly 0.

        Args:
            id_ST: prompt then response, right-padded with any valid id.
            prompt_length_S: tokens of the prompt, >= 1.
            length_S: tokens of prompt and response; what lies behind is padding.
            sampled_ST: as of ``response_mask``; tokens of an environment are read as a prompt is, and not scored.

        Inputs may lie on the host: then nothing waits for the device (``placing.py``).
        """
        is_response_ST = response_mask(prompt_length_S, length_S, id_ST.shape[1], sampled_ST)
        response_T = sent(places(is_response_ST), self.device)
        column_ST = torch.arange(id_ST.shape[1], device=id_ST.device).expand_as(id_ST)
        # each token with the one after it, and whether that one belongs to the response
        next_ST = id_ST.roll(-1, 1)
        before_ST = torch.cat([is_response_ST, is_response_ST.new_zeros(len(id_ST), 1)], dim=1)
        rows = (id_ST, column_ST, next_ST, before_ST)
        self.hold(columns, column_ST < length_S[:, None] if self.packed else None)
        if self.packed:
            is_token_ST = column_ST < length_S[:, None]
            id_ST, column_ST, next_ST, before_ST = (tensor[is_token_ST][None] for tensor in rows)
        logprob_T = self.score(id_ST, column_ST, next_ST, before_ST)
        return spread(logprob_T, response_T, is_response_ST.shape)

    def hold(self, columns: Sequence[Tensor] | None, is_token_ST: Tensor | None) -> None:
        """Hold the numbers of tokens for the next forward pass; ``is_token_ST`` marks the tokens of packed rows."""
        # also without numbers: those of the pass before must not stay
        for number, holder in enumerate(self.holders):
            holder.hold(columns[number] if columns else None, is_token_ST, self.device)

    def score(
        self, id_RT: Tensor, column_RT: Tensor, next_RT: Tensor, before_RT: Tensor, positions: bool = False
    ) -> Tensor:
        """Score the successors of the tokens of ``before_RT``, [T], in the order of the rows.

        Args:
            id_RT: token ids of R rows: padded ones, or one that holds all sequences.
            column_RT: the place of each token in its sequence.
            next_RT: the ids to score, one place to the left.
            before_RT: true where the next token is scored.
            positions: tell the model the places; else only if several sequences are packed.
        """
        layout: dict[str, Any] = {"position_ids": sent(column_RT, self.device)} if self.packed or positions else {}
        if self.packed and self.model.config._attn_implementation == VARIABLE_LENGTH:
            bound, longest = bounds(column_RT[0])
            bound = sent(bound, self.device)
            layout |= {"cu_seq_lens_q": bound, "cu_seq_lens_k": bound, "max_length_q": longest, "max_length_k": longest}
        place_T = places(before_RT)
        next_T = sent(next_RT.flatten()[place_T], self.device)
        place_T = sent(place_T, self.device)
        output = self.model.base_model(input_ids=sent(id_RT, self.device), use_cache=False, **layout)
        hidden_TD = output.last_hidden_state.flatten(0, 1).index_select(0, place_T)
        logprob_T: Tensor = self.model.get_output_embeddings()(hidden_TD, next_T)
        return logprob_T
