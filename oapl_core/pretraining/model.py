"""Trains a tiny Qwen3-type causal LM from nothing on (prompt, answer) pairs; only the answer's tokens carry loss.

Reads nothing, writes nothing: pretrain.py gives it token ids and saves what it returns. Differs from a textbook loop in
two things. Batches hold sequences of nearly equal length, right-padded without an attention mask (a causal model never
looks right). Logits are computed at the answer's positions alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

    from oapl_core.settings.pretrain import PretrainConfig


@dataclass(frozen=True)
class Example:
    """Training sequence: a prompt and its answer."""

    prompt_ids: list[int]
    answer_ids: list[int]
    """Ends with the end-of-turn token."""

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.answer_ids)


def new_model(config: PretrainConfig, tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """Make a freshly initialised model in float32 whose generation settings stop at the end of a turn."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=-(-len(tokenizer) // 64) * 64,  # a multiple of 64 suits every engine
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            head_dim=config.hidden_size // config.heads,
            max_position_embeddings=config.max_positions,
            # The last norm makes states of length sqrt(width), so with tied embeddings of this size the first logits
            # have a standard deviation of 1/2: training starts near the uniform distribution.
            tie_word_embeddings=True,
            initializer_range=1 / math.sqrt(config.hidden_size) / 2,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            dtype="float32",
        )
    )
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    return model


def plan_batches(lengths: Sequence[int], batch_size: int, rng: random.Random) -> list[list[int]]:
    """Return indices of one epoch's batches: neighbours in length together, ties and the order of batches shuffled."""
    # A batch is as wide as its longest sequence: neighbours in length leave little padding to compute.
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], rng.random()))
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    rng.shuffle(batches)
    return batches


def learning_rate_share(step: int, steps: int, warmup_share: float = 0.05) -> float:
    """Return the share of the peak at `step`: a linear warm-up that starts above 0, then a straight line down to 0."""
    warmup = max(1, round(warmup_share * steps))
    return min((step + 1) / warmup, (steps - step) / max(1, steps - warmup))


def train_model(
    model: Qwen3ForCausalLM,
    examples: Sequence[Example],
    config: PretrainConfig,
    seed: int,
    on_step: Callable[[int, int, float], None],
) -> None:
    """Train in place for `config.epochs`; `on_step(done, total, loss)` follows every step (nats per token)."""
    import torch

    rng = random.Random(seed)
    lengths = [len(example) for example in examples]
    # All epochs are planned before the first step, so that the learning rate knows how many steps there will be.
    batches = [batch for _ in range(config.epochs) for batch in plan_batches(lengths, config.batch_size, rng)]
    # Muon orthogonalises updates, which suits hidden matrices alone: embeddings and norms get AdamW. `match_rms_adamw`
    # scales its steps like Adam's, so that one learning rate serves both.
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=config.learning_rate, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    model.train()
    for step, batch in enumerate(batches):
        loss = batch_loss(model, [examples[i] for i in batch])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = config.learning_rate * learning_rate_share(step, len(batches))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        on_step(step + 1, len(batches), loss.item())
    model.eval()


def batch_loss(model: Qwen3ForCausalLM, examples: Sequence[Example]) -> torch.Tensor:
    """Return the mean negative log-probability of the answers' tokens (a scalar, nats per token)."""
    import torch
    import torch.nn.functional as F

    width = max(len(example) for example in examples)
    ids = torch.zeros((len(examples), width), dtype=torch.long)  # [S, T]; what lies right of a sequence is never seen
    is_target = torch.zeros((len(examples), width), dtype=torch.bool)
    for row, example in enumerate(examples):
        ids[row, : len(example)] = torch.tensor(example.prompt_ids + example.answer_ids)
        is_target[row, len(example.prompt_ids) : len(example)] = True
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state  # [S, T, hidden]
    # State t predicts token t + 1. Most positions are prompts: the output layer skips them.
    logits = model.lm_head(hidden[:, :-1][is_target[:, 1:]])  # [answer tokens, V]
    return F.cross_entropy(logits, ids[:, 1:][is_target[:, 1:]])
