"""A prompt computed once for all answers to it that are in a micro-batch, forwards and backwards.

The first of them lies behind its prompt in the packed row, as ever. The others lie there without one: their positions
follow the prompt's, and their queries attend to its keys and values and to their own (``attention.py``). A prompt's
hidden states do not depend on the tokens behind it, so log-probs are those of whole sequences. The backward pass adds
up every answer's gradient in the prompt: the gradient is the same, too. Answers share a prompt if its token ids are the
same, whatever group they are of.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from oapl_core.errors import ConfigError
from oapl_core.progress import say
from oapl_core.settings.training import TrainingConfig
from oapl_core.training.layouts.attention import give, has_kernel, is_plain
from oapl_core.training.layouts.batching import Deal, Shares, pack
from oapl_core.training.layouts.packing import refuse_changes
from oapl_core.training.layouts.placing import VARIABLE_LENGTH, places, response_mask, sent, spread
from oapl_core.training.model.logprobs import Policy
from oapl_core.training.ranks import own_rank
from oapl_core.training.ways import Way

if TYPE_CHECKING:
    from oapl_core.training.engine import TrainingEngine
    from oapl_core.training.examples import Examples

WORTH = 0.2
"""Share of an epoch's tokens that must be saved. On a CPU 0.15 is as fast as without (docs/benchmarks/trainer.md)."""
_CHECKED = 256
"""Tokens of a prompt and of an answer that are scored before training starts, to see whether sharing changes them."""
Prompts = Sequence[tuple[int, int]]
"""A label of each sequence's prompt, and its tokens; equal for those that have the same."""
_KNOWN_LAYERS = {"full_attention", "sliding_attention"}


class SharedPrompts(Way):
    """Each prompt once: `training.share_prompts` = 'on', and 'auto' where it is possible and pays."""

    def policy(self, model: Any, examples: "Examples") -> Policy | None:
        """Compute each prompt once where the setting says so."""
        if not shares_prompts(model, self.training, examples):
            return None
        return SharedPromptPolicy(model, examples.temperature, self.training.logprob_chunk)

    def begin(self, engine: "TrainingEngine", examples: "Examples") -> Mapping[str, str]:
        """Prove that answers with a shared prompt do not see each other."""
        if engine.policy.shares_prompts:
            refuse_sharing(engine, examples)
        return {}


@dataclass(frozen=True)
class SharedRow:
    """Where the tokens of a micro-batch lie in the row that the model computes."""

    computed_ST: Tensor
    """True for those that are in it, in their order."""
    place_ST: Tensor
    """Place of each token in it; of a prompt that is not in it again, where it is."""
    attention: dict[str, Any]
    """Arguments of the attention: which tokens each query sees."""

    @classmethod
    def of(cls, id_ST: Tensor, prompt_length_S: Tensor, length_S: Tensor) -> "SharedRow":
        """Lay out right-padded rows of prompt and response."""
        column_ST = torch.arange(id_ST.shape[1], device=id_ST.device).expand_as(id_ST)
        is_prompt_ST = column_ST < prompt_length_S[:, None]
        _, prompt_S = torch.where(is_prompt_ST, id_ST, -1).unique(dim=0, return_inverse=True)
        first_S = (prompt_S[:, None] == prompt_S).int().argmax(1)
        brings_S = first_S == torch.arange(len(id_ST), device=id_ST.device)
        is_token_ST = column_ST < length_S[:, None]
        computed_ST = is_token_ST & (brings_S[:, None] | ~is_prompt_ST)
        place_ST = (computed_ST.flatten().cumsum(0) - 1).view_as(id_ST)
        place_ST = torch.where(is_prompt_ST, place_ST[first_S], place_ST)
        query_S = computed_ST.sum(1)
        attention = {
            "cu_seq_lens_q": _bounds(query_S),
            "cu_seq_lens_k": _bounds(length_S),
            "max_length_q": int(query_S.max()),
            "max_length_k": int(length_S.max()),
            "key_place_K": place_ST[is_token_ST],
        }
        return cls(computed_ST, place_ST, attention)


def _bounds(length_S: Tensor) -> Tensor:
    return torch.nn.functional.pad(length_S.cumsum(0), (1, 0)).int()


class SharedPromptPolicy(Policy):
    """A policy that computes each prompt of a micro-batch once."""

    shares_prompts = True

    def __init__(self, model: Any, temperature: float = 1.0, chunk: int = 4096) -> None:
        """Wrap the model for packed rows, and give it the attention that sharing needs."""
        give(model)
        super().__init__(model, temperature, chunk, packed=True)

    def deal(self, prompts: Prompts) -> Deal:
        """Keep the answers to a prompt together."""
        return partial(dealt, prompts=prompts)

    def repeated(self, rows: Sequence[int], prompts: Prompts) -> list[int]:
        """Return the tokens of every prompt of ``rows`` that one before it has, too."""
        return repeated_prompts(rows, prompts)

    def forward(
        self, id_ST: Tensor, prompt_length_S: Tensor, length_S: Tensor, columns: Any = None, sampled_ST: Any = None
    ) -> Tensor:
        """Score like a ``Policy``; stored numbers of a prompt are those of the first answer to it."""
        is_response_ST = response_mask(prompt_length_S, length_S, id_ST.shape[1], sampled_ST)
        row = SharedRow.of(id_ST, prompt_length_S, length_S)
        column_ST = torch.arange(id_ST.shape[1], device=id_ST.device).expand_as(id_ST)
        self.hold(columns, row.computed_ST)
        # with another attention a guard scores sequences one by one
        layout = row.attention if self.model.config._attn_implementation == VARIABLE_LENGTH else {}
        layout = {"position_ids": column_ST[row.computed_ST][None], **layout}
        layout = {name: sent(x, self.device) if isinstance(x, Tensor) else x for name, x in layout.items()}
        # the prompt's last token comes before the first of every answer to it
        place_T, next_T, response_T = (
            sent(found, self.device)
            for found in (
                row.place_ST[:, :-1][is_response_ST],
                id_ST[:, 1:][is_response_ST],
                places(is_response_ST),
            )
        )
        ids = sent(id_ST[row.computed_ST][None], self.device)
        hidden_TD = self.model.base_model(input_ids=ids, use_cache=False, **layout).last_hidden_state[0]
        logprob_T: Tensor = self.model.get_output_embeddings()(hidden_TD.index_select(0, place_T), next_T)
        return spread(logprob_T, response_T, is_response_ST.shape)


def repeated_prompts(rows: Iterable[int], prompts: Prompts) -> list[int]:
    """Return the tokens of every prompt of ``rows`` that one before it has, too."""
    counts = Counter(prompts[i] for i in rows)
    return [size for (_, size), count in counts.items() for _ in range(count - 1)]


def computed_tokens(rows: Sequence[int], lengths: Sequence[int], prompts: Prompts) -> int:
    """Count the tokens of the sequences ``rows`` with each of their prompts counted once."""
    return sum(lengths[i] for i in rows) - sum(repeated_prompts(rows, prompts))


def dealt(by_length: Sequence[int], lengths: Sequence[int], token_budget: int, ranks: int, prompts: Prompts) -> Shares:
    """Return each rank's micro-batches, with the answers to a prompt in as few as the budget allows."""
    groups = sorted(_by_prompt(by_length, prompts), key=lambda rows: -computed_tokens(rows, lengths, prompts))
    # a prompt is rather computed on several ranks than one of them left without work
    shares = [[i for group in groups[rank::ranks] for i in group] for rank in range(ranks)]
    if len(groups) < ranks:
        shares = [list(by_length[rank::ranks]) for rank in range(ranks)]
    return [_pack_prompts(share, lengths, prompts, token_budget) for share in shares]


def _by_prompt(rows: Sequence[int], prompts: Prompts) -> list[list[int]]:
    members: dict[tuple[int, int], list[int]] = {}
    for i in rows:
        members.setdefault(prompts[i], []).append(i)
    return list(members.values())


def _pack_prompts(rows: Sequence[int], lengths: Sequence[int], prompts: Prompts, token_budget: int) -> list[list[int]]:
    pieces = []
    for group in _by_prompt(rows, prompts):
        _, size = prompts[group[0]]
        answers = [lengths[i] - size for i in group]
        pieces += [[group[p] for p in part] for part in pack(range(len(group)), answers, token_budget - size)]
    sizes = [computed_tokens(piece, lengths, prompts) for piece in pieces]
    largest_first = sorted(range(len(pieces)), key=lambda p: -sizes[p])
    return [[i for p in part for i in pieces[p]] for part in pack(largest_first, sizes, token_budget)]


def shares_prompts(model: Any, training: TrainingConfig, examples: "Examples") -> bool:
    """Decide whether prompts are computed once: by the settings, with ``auto`` where it is possible and pays. Says so.

    Raises:
        ConfigError: they must be, and this model's attention does not allow it.
    """
    if training.share_prompts == "off":
        return False
    if training.share_prompts == "on" and not is_plain(model):
        raise ConfigError(
            f"training.share_prompts = 'on': {type(model).__name__} has an attention of its own; set it to 'off'"
        )
    saved = saved_share(examples)
    against = "" if training.share_prompts == "on" else _against(model, training, saved)
    if not own_rank():
        done = f"not computed once: {against}" if against else f"computed once: it saves {saved:.0%} of the tokens"
        say(f"prompts are {done}")
    return not against


def _against(model: Any, training: TrainingConfig, saved: float) -> str:
    """Return why ``auto`` leaves prompts as they are; empty: it does not."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    if training.packing == "off" or training.sequence_parallel > 1:
        return "training.packing is off or sequences are shared by ranks"
    if not is_plain(model) or not _KNOWN_LAYERS.issuperset(kinds):
        return f"{type(model).__name__} has an attention of its own"
    if torch.cuda.is_available() and not has_kernel(model, getattr(torch, training.dtype)):
        return "no kernel for it runs here"
    return f"it would save {saved:.0%} of the tokens" if saved < WORTH else ""


def saved_share(examples: "Examples") -> float:
    """Return the share of the tokens that need not be computed where each group's prompt is computed once."""
    rows, lengths = range(len(examples.lengths)), examples.lengths
    return 1 - computed_tokens(rows, lengths, examples.prompts) / sum(lengths)


def refuse_sharing(engine: "TrainingEngine", examples: "Examples") -> None:
    """Score answers of the round with their prompts shared and each by itself; every rank calls it.

    Raises:
        ConfigError: their log-probs are not the same.
    """
    lengths, members = examples.lengths, dict[tuple[int, int], list[int]]()
    for row in sorted(range(len(lengths)), key=lambda row: lengths[row]):
        members.setdefault(examples.prompts[row], []).append(row)
    # the second of two answers must find its prompt beyond the answer between them
    pair, *others = sorted(members.values(), key=lambda rows: -len(rows))
    rows = [pair[0], (others[0] if others else pair)[-1], pair[min(1, len(pair) - 1)]]
    batch = examples.batch(rows)
    prompt_S = batch.prompt_length_S.clamp(max=_CHECKED)
    answer_S = (batch.length_S - batch.prompt_length_S).clamp(max=_CHECKED)
    cut = [
        torch.cat([ids[:short], ids[prompt : prompt + answer]])
        for ids, short, prompt, answer in zip(batch.id_ST, prompt_S, batch.prompt_length_S, answer_S, strict=True)
    ]
    id_ST = torch.nn.utils.rnn.pad_sequence(cut, batch_first=True)
    inputs = [tensor.to(engine.device) for tensor in (id_ST, prompt_S, prompt_S + answer_S)]
    refuse_changes(
        engine,
        inputs,
        "training.share_prompts: answers that share their prompt change each other's log-probs",
        "this model looks at other tokens in a way that is not known here, set training.share_prompts = 'off'",
    )
