"""Samples a small Qwen3 model with torch alone, for a GPU machine without vLLM: a `Sampler` with a fixed KV cache.

Every row of the cache holds one answer; a row whose answer ended takes the next request. A token is drawn by the
inverse of the cumulative distribution at a number that depends on the request's seed and the token's position alone,
so an answer does not depend on what else is sampled, but for rounding. Log-probs are of the distribution at T = 1.

Axes: S rows of the cache, L positions, H heads, D width of a head, V vocabulary, R rows of a prefill.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.claims.sampled import passed_at
from oapl_core.rollouts.requests import Request, SampledAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BUCKET = 128
"""Attention reads the cache up to a multiple of so many positions; on a GPU each multiple has a graph of its own."""
BETWEEN = 8
"""Tokens between two looks at which answers have ended."""
LEAST_FREE = 8
"""A prefill waits until one row of so many is free."""
FEW = 64
"""Requests that are sampled in as many rows, however many there are: a lag of 1 asks for no more."""


@dataclass(frozen=True)
class Layer:
    """Weights of one layer, matrices as [in, out]."""

    before: Tensor
    qkv: Tensor
    q_norm: Tensor
    k_norm: Tensor
    out: Tensor
    after: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass
class Weights:
    """A Qwen3 model with as many key heads as query heads and tied embeddings."""

    embedding: Tensor
    layers: list[Layer]
    norm: Tensor
    heads: int
    epsilon: float
    cos: Tensor
    """[positions, D], of the rotary embedding."""
    sin: Tensor


def read_weights(folder: Path, device: torch.device, dtype: torch.dtype, positions: int) -> Weights:
    """The model of a folder.

    Raises:
        ValueError: heads of keys are fewer than of queries, or the output layer has weights of its own.
    """
    from safetensors.torch import load_file
    from transformers import AutoConfig

    config: Any = AutoConfig.from_pretrained(folder)
    if config.num_key_value_heads != config.num_attention_heads or not config.tie_word_embeddings:
        raise ValueError(f"{folder}: only models with as many key heads as query heads and tied embeddings are sampled")
    state = {name: weight.to(device, dtype) for name, weight in load_file(folder / "model.safetensors").items()}

    def of(number: int) -> Layer:
        own = {n.removeprefix(f"model.layers.{number}."): w for n, w in state.items() if f".layers.{number}." in n}
        q, k, v = (own[f"self_attn.{name}_proj.weight"] for name in "qkv")
        gate, up = own["mlp.gate_proj.weight"], own["mlp.up_proj.weight"]
        return Layer(
            own["input_layernorm.weight"],
            torch.cat([q, k, v]).T.contiguous(),
            own["self_attn.q_norm.weight"],
            own["self_attn.k_norm.weight"],
            own["self_attn.o_proj.weight"].T.contiguous(),
            own["post_attention_layernorm.weight"],
            torch.cat([gate, up]).T.contiguous(),
            own["mlp.down_proj.weight"].T.contiguous(),
        )

    theta = config.rope_parameters["rope_theta"]
    inverse_D = 1 / theta ** (torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim)
    angle_LD = torch.outer(torch.arange(positions, dtype=torch.float64), inverse_D).repeat(1, 2)
    cos, sin = (x.to(device, torch.float32) for x in (angle_LD.cos(), angle_LD.sin()))
    layers = [of(number) for number in range(config.num_hidden_layers)]
    norm = state["model.norm.weight"]
    return Weights(
        state["model.embed_tokens.weight"], layers, norm, config.num_attention_heads, config.rms_norm_eps, cos, sin
    )


class TorchSampler:
    """Answers of a model folder; `load` gives it other weights of the same architecture."""

    logprobs_mode = "raw_logprobs"

    def __init__(self, folder: Path, rows: int, positions: int, dtype: torch.dtype | None = None) -> None:
        """``rows`` answers at once, each of at most ``positions`` tokens with its prompt."""
        from transformers import PreTrainedTokenizerFast

        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._dtype = dtype or (torch.float16 if self.device.type == "cuda" else torch.float32)
        self.name, self.dtype = f"torch {torch.__version__}", str(self._dtype).removeprefix("torch.")
        began = time.monotonic()
        self.rows, self.positions = rows, -(-positions // BUCKET) * BUCKET
        self.tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
        self._ends = torch.tensor([self.tokenizer.eos_token_id], device=self.device)
        self.weights = self._read(folder)
        layers, heads = len(self.weights.layers), self.weights.heads
        width = self.weights.embedding.shape[1] // heads
        shape = (layers, 2, rows, heads, self.positions, width)
        self._cache = torch.zeros(shape, device=self.device, dtype=self._dtype)
        self._token_S = torch.zeros(rows, dtype=torch.long, device=self.device)
        self._batch = Batch(rows, self.positions, self.device)
        self._graphs: dict[tuple[int, int, bool], tuple[Any, Tensor | None]] = {}
        self._pool: Any = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None
        self.startup_s = {"torch": time.monotonic() - began}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _k: type[BaseException] | None, _e: BaseException | None, _t: TracebackType | None) -> None:
        """Free the cache and the graphs that read it."""
        self._graphs.clear()
        del self._cache, self._batch

    def _read(self, folder: Path) -> Weights:
        return read_weights(folder, self.device, self._dtype, self.positions)

    def load(self, model_dir: Path) -> None:
        """Continue with other weights, in the places of the old ones: graphs read those."""
        new = self._read(model_dir)
        for old, own in zip(_tensors(self.weights), _tensors(new), strict=True):
            old.copy_(own)

    @torch.inference_mode()
    def sample(self, requests: Iterable[Request | None], with_logprobs: bool = True) -> Iterator[SampledAnswer]:
        """Yield answers as they end, in any order."""
        asked = [one for one in requests if one]
        waiting = iter(asked)
        batch = self._batch
        batch.begin(min(self.rows, FEW) if len(asked) <= FEW else self.rows, any(one.top_p < 1 for one in asked))
        while True:
            free = batch.free()
            if len(free) * LEAST_FREE >= batch.rows:
                self._take(batch, free, list(itertools.islice(waiting, len(free))))
            if not batch.requests:
                return
            longest = batch.longest() + BETWEEN
            for _ in range(BETWEEN):
                self._step(batch, min(self.positions, -(-longest // BUCKET) * BUCKET))
            yield from batch.ended(self.tokenizer, with_logprobs)

    def _take(self, batch: Batch, free: Sequence[int], new: Sequence[Request]) -> None:
        """Compute the prompts of some requests, each different one once, and draw their first tokens."""
        if not new:
            return
        prompts = list(dict.fromkeys(tuple(one.prompt_ids) for one in new))
        place = {ids: r for r, ids in enumerate(prompts)}
        which = torch.tensor([place[tuple(one.prompt_ids)] for one in new], device=self.device)
        rows = torch.tensor(free[: len(new)], device=self.device)
        width = max(map(len, prompts))
        id_RL = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids in prompts], device=self.device)
        length_R = torch.tensor([len(ids) for ids in prompts], device=self.device)
        logits_RV = self._prefill(id_RL, length_R, which, rows)
        batch.put(rows.tolist(), new)
        batch.length_S[rows] = length_R[which] - 1  # `_draw` counts the token that is about to be computed
        logits_SV = logits_RV.new_zeros(batch.rows, logits_RV.shape[1])
        logits_SV[rows] = logits_RV[which]
        is_new_S = torch.zeros(batch.rows, dtype=torch.bool, device=self.device)
        is_new_S[rows] = True
        self._draw(batch, logits_SV, is_new_S)

    def _draw(self, batch: Batch, logits_SV: Tensor, is_asked_S: Tensor | None = None) -> None:
        """Draw a token of each row that is in use, or of those asked for. The host waits for nothing."""
        many = slice(batch.rows)
        is_own_S = batch.alive_S[many] if is_asked_S is None else batch.alive_S[many] & is_asked_S
        logits_SV = logits_SV.float()
        ways = batch.temperature_S[many], batch.top_p_S[many]
        token_S = drawn(logits_SV, *ways, batch.uniform(), batch.has_top_p)
        logprob_S = torch.log_softmax(logits_SV, -1).gather(1, token_S[:, None])[:, 0]
        self._token_S[many] = token_S.where(is_own_S, self._token_S[many])
        is_end_S = (token_S[:, None] == self._ends).any(-1)
        batch.add(is_own_S, token_S, logprob_S, is_end_S)

    def _step(self, batch: Batch, seen: int) -> None:
        """Compute every row's next token and draw it, when attention reads so many positions."""
        key = batch.rows, seen, batch.has_top_p
        if self.device.type != "cuda" or (key not in self._graphs):
            self._draw(batch, self._decode(batch, seen))
            if self.device.type == "cuda":  # what the step above warmed up is not started within a capture
                self._graphs[key] = self._captured(batch, seen)
            return
        graph, logits_SV = self._graphs[key]
        graph.replay()
        if logits_SV is not None:
            self._draw(batch, logits_SV)

    def _captured(self, batch: Batch, seen: int) -> tuple[Any, Tensor | None]:
        """A graph of a step, which runs nothing yet; with a top-p, that sorts, of its logits alone."""
        torch.cuda.synchronize()
        graph, logits_SV = torch.cuda.CUDAGraph(), None
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            if batch.has_top_p:
                logits_SV = self._decode(batch, seen)
            else:
                self._draw(batch, self._decode(batch, seen))
        return graph, logits_SV

    def _decode(self, batch: Batch, seen: int) -> Tensor:
        """Logits behind every row's last token, [S, V]."""
        many, row_S = slice(batch.rows), batch.row_S[: batch.rows]
        place_S = batch.length_S[many].clamp(max=self.positions - 1)
        mask_SHQL = (torch.arange(seen, device=self.device) <= place_S[:, None])[:, None, None]

        def attend(number: int, q_SHD: Tensor, k_SHD: Tensor, v_SHD: Tensor) -> Tensor:
            keys, values = self._cache[number]
            keys[row_S, :, place_S] = k_SHD
            values[row_S, :, place_S] = v_SHD
            own = F.scaled_dot_product_attention(
                q_SHD[:, :, None], keys[many, :, :seen], values[many, :, :seen], attn_mask=mask_SHQL
            )
            return own[:, :, 0]

        return self._forward(self._token_S[many], place_S, attend)

    def _prefill(self, id_RL: Tensor, length_R: Tensor, which: Tensor, rows: Tensor) -> Tensor:
        """Fill the cache's rows with the prompts ``which`` says; returns the logits behind each prompt, [R, V]."""
        many, width = id_RL.shape
        place = torch.arange(width, device=self.device).expand(many, width)

        def attend(number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (x.view(many, width, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
            for kind, own in enumerate((k, v)):
                self._cache[number, kind, rows, :, :width] = own[which]
            # what lies behind a prompt is never seen from within it
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(0, 1)

        last = torch.arange(many, device=self.device) * width + length_R - 1
        return self._forward(id_RL.flatten(), place.flatten(), attend, last)

    def _forward(
        self, id_N: Tensor, place_N: Tensor, attend: Callable[..., Tensor], wanted: Tensor | None = None
    ) -> Tensor:
        """Logits of N tokens, or of those wanted; ``attend`` maps [N, H, D] of a layer to the same."""
        w = self.weights
        x_ND = w.embedding[id_N]
        cos_ND, sin_ND = w.cos[place_N][:, None], w.sin[place_N][:, None]
        for number, layer in enumerate(w.layers):
            q, k, v = (_norm(x_ND, layer.before, w.epsilon) @ layer.qkv).chunk(3, -1)
            q, k, v = (x.view(len(id_N), w.heads, -1) for x in (q, k, v))
            q = _rotated(_norm(q, layer.q_norm, w.epsilon), cos_ND, sin_ND)
            k = _rotated(_norm(k, layer.k_norm, w.epsilon), cos_ND, sin_ND)
            x_ND = x_ND + attend(number, q, k, v).flatten(1) @ layer.out
            gate, up = (_norm(x_ND, layer.after, w.epsilon) @ layer.gate_up).chunk(2, -1)
            x_ND = x_ND + (F.silu(gate) * up) @ layer.down
        x_ND = x_ND if wanted is None else x_ND[wanted]
        # 16 bits would round logits by a hundredth
        return _norm(x_ND, w.norm, w.epsilon).float() @ w.embedding.float().T


class Batch:
    """The requests in hand, one to a row, and what was drawn of their answers; its tensors stay where graphs read."""

    def __init__(self, most_rows: int, most: int, device: torch.device) -> None:
        self.requests: dict[int, Request] = {}
        self.rows = most_rows
        """Rows in use, the first ones."""
        self.has_top_p = False
        """Whether a request of any row ever had a top-p: only then are probabilities sorted."""
        self.row_S = torch.arange(most_rows, device=device)
        self.alive_S = torch.zeros(most_rows, dtype=torch.bool, device=device)
        self.temperature_S = torch.ones(most_rows, device=device)
        self.top_p_S = torch.ones(most_rows, device=device)
        self._seed_S = torch.zeros(most_rows, dtype=torch.long, device=device)
        self._count_S = torch.zeros(most_rows, dtype=torch.long, device=device)
        self._most_S = torch.zeros(most_rows, dtype=torch.long, device=device)
        self._is_cut_S = torch.zeros(most_rows, dtype=torch.bool, device=device)
        self._token_SL = torch.zeros(most_rows, most, dtype=torch.int32, device=device)
        self._logprob_SL = torch.zeros(most_rows, most, device=device)
        self._most = most
        self.length_S = torch.zeros(most_rows, dtype=torch.long, device=device)
        """Tokens of a row that the cache holds, so the position of the next."""

    def begin(self, rows: int, has_top_p: bool) -> None:
        """Forget what an abandoned call left, and use so many rows."""
        self.requests.clear()
        self.alive_S.zero_()
        self.rows, self.has_top_p = rows, has_top_p

    def free(self) -> list[int]:
        """Rows that no request has."""
        return [row for row in range(self.rows) if row not in self.requests]

    def longest(self) -> int:
        """Tokens of the longest row in hand."""
        return int(self.length_S.where(self.alive_S, 0).max())

    def put(self, rows: Sequence[int], new: Sequence[Request]) -> None:
        """Give rows to requests."""
        self.requests |= dict(zip(rows, new, strict=True))
        at = torch.tensor(rows, device=self.alive_S.device)
        for target, values in (
            (self.temperature_S, [one.temperature for one in new]),
            (self.top_p_S, [one.top_p for one in new]),
            (self._seed_S, [one.seed % 2**32 for one in new]),
            (self._most_S, [one.max_tokens for one in new]),
        ):
            target[at] = torch.tensor(values, device=target.device, dtype=target.dtype)
        self.alive_S[at], self._count_S[at], self._is_cut_S[at] = True, 0, False

    def uniform(self) -> Tensor:
        """A number in [0, 1) of each row's seed and place, [S]: two rounds of a 32-bit hash (murmur3's finaliser)."""
        many = slice(self.rows)
        h = _mixed(self._seed_S[many] ^ _mixed(self._count_S[many] * 0x9E3779B1 & 0xFFFFFFFF))
        return (h >> 8).float() / 2**24

    def add(self, is_own_S: Tensor, token_S: Tensor, logprob_S: Tensor, is_end_S: Tensor) -> None:
        """Append a token to each of some rows."""
        many, row_S = slice(self.rows), self.row_S[: self.rows]
        at = self._count_S[many].clamp(max=self._most - 1)
        for target, new in ((self._token_SL, token_S.int()), (self._logprob_SL, logprob_S)):
            target[row_S, at] = new.where(is_own_S, target[row_S, at])
        self._count_S[many] += is_own_S
        self.length_S[many] += is_own_S
        is_full_S = (self._count_S[many] >= self._most_S[many]) | (self.length_S[many] >= self._most - 1)
        self._is_cut_S[many] = (is_full_S & ~is_end_S).where(is_own_S, self._is_cut_S[many])
        self.alive_S[many] &= ~(is_own_S & (is_end_S | is_full_S))

    def ended(self, tokenizer: Any, with_logprobs: bool) -> list[SampledAnswer]:
        """Take the answers that ended out of their rows."""
        done = [
            row for row, alive in enumerate(self.alive_S[: self.rows].tolist()) if not alive and row in self.requests
        ]
        if not done:
            return []
        at = torch.tensor(done, device=self.alive_S.device)
        counts, cut = self._count_S[at].tolist(), self._is_cut_S[at].tolist()
        width = max(counts)
        tokens, logprobs = self._token_SL[at, :width].tolist(), self._logprob_SL[at, :width].tolist()
        ids = [own[:n] for own, n in zip(tokens, counts, strict=True)]
        texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [
            SampledAnswer(
                self.requests.pop(row),
                own,
                known[: len(own)] if with_logprobs else [],
                "length" if is_cut else "stop",
                t,
            )
            for row, own, known, is_cut, t in zip(done, ids, logprobs, cut, texts, strict=True)
        ]


def drawn(logits_RV: Tensor, temperature_R: Tensor, top_p_R: Tensor, uniform_R: Tensor, has_top_p: bool) -> Tensor:
    """A token of each row, [R]: where the cumulative distribution passes the row's number; at T = 0 the likeliest."""
    is_greedy_R = temperature_R == 0
    p_RV = torch.softmax(logits_RV / temperature_R.masked_fill(is_greedy_R, 1.0)[:, None], -1)
    token_R = passed_at(p_RV.cumsum(-1), uniform_R)
    if has_top_p:
        sorted_RV, order_RV = p_RV.sort(-1, descending=True)
        # the fewest likeliest tokens whose probabilities reach top_p, as vLLM takes them
        kept_RV = sorted_RV * (sorted_RV.cumsum(-1) - sorted_RV < top_p_R[:, None])
        cut_R = order_RV.gather(1, passed_at(kept_RV.cumsum(-1), uniform_R)[:, None])[:, 0]
        token_R = token_R.where(top_p_R == 1, cut_R)
    return token_R.where(~is_greedy_R, logits_RV.argmax(-1))


def _mixed(h: Tensor) -> Tensor:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = ((h ^ (h >> shift)) * factor) & 0xFFFFFFFF
    return h ^ (h >> 16)


def _norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm, computed in float32 as the model does."""
    long = x.float()
    return weight * (long * torch.rsqrt(long.square().mean(-1, keepdim=True) + epsilon)).to(x.dtype)


def _rotated(x_NHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x_NHD.float().chunk(2, -1)
    return (x_NHD * cos + torch.cat([-second, first], -1) * sin).to(x_NHD.dtype)


def _tensors(weights: Weights) -> Iterator[Tensor]:
    yield weights.embedding
    yield weights.norm
    for layer in weights.layers:
        yield from vars(layer).values()
