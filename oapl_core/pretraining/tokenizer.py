"""The tiny base model's tokenizer: byte-level BPE trained on the demo's own texts, with Qwen's chat markers.

Reads nothing, writes nothing. Differs from Qwen's in the pre-tokenizer alone. Text is cut after line ends instead of at
words: a whole phrase or line of code can become one token, while digits stay single. That keeps answers near 15 tokens,
and makes copying a constant the copying of one token.

Trap: AutoTokenizer goes by the model's type and, beside a `qwen2` config, rebuilds Qwen's own pre-tokenizer, which
encodes differently and says nothing. Beside a `qwen3` config tokenizer.json is kept as it is
(tests/core/pretraining/test_tokenizer.py holds transformers and vLLM to it).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

IM_START, IM_END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)
"""Qwen's chat template without system prompt and tools."""

SINGLE = "|".join(
    (
        r"(?!2 == |1\) \+)\d(?<!== \d)",  # digits, but for those of a parity or divisibility test and of `*(-1) + `
        r" {4}",  # one level of indentation
        r"[fgh]\(x\) = ",  # the head of a definition
        r"\\boxed\{\(*x",  # the innermost term of an answer
    )
)
"""Texts that are always a token of their own (a regular expression)."""


def train_tokenizer(texts: Iterable[str], vocabulary_size: int) -> PreTrainedTokenizerFast:
    """Train a tokenizer whose merges come from `texts`; `vocabulary_size` is its largest size, the 3 markers
    included.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SINGLE), "isolated"),
            pre_tokenizers.Split("\n", "merged_with_previous"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[PAD, IM_START, IM_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=IM_END,
        pad_token=PAD,
        additional_special_tokens=[IM_START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
