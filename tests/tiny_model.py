"""A tiny random Hugging Face model folder, made in seconds, for tests that need a real one.

Writes config, float32 weights, a byte-level BPE tokenizer (exact round trip of any text) and a chat template.
"""

from pathlib import Path
from typing import Any

TEXTS = [
    "Read integers from one line, keep those below 7, print the sum.\n",
    "def solve(a):\n    return max(a) - min(a)\n",
    "print(sum(int(x) for x in input().split()))\n",
    "The answer is \\boxed{x^2 + 8x + 16}. Let f(x) = x^2 and g(x) = x + 4.\n",
]
END = "<|im_end|>"
PAD = "<|endoftext|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tiny_model(
    folder: Path,
    seed: int = 0,
    hidden_size: int = 32,
    layers: int = 2,
    vocabulary: int = 320,
    sharpness: float = 1.0,
    tied: bool = True,
) -> Path:
    """Write a random Qwen3 model of about 50,000 parameters to ``folder`` and return it.

    Args:
        folder: made if it is missing.
        seed: of the random weights; the tokenizer is always the same.
        hidden_size: width; heads have 32 dimensions, the fewest that vLLM on CPU knows.
        layers: number of blocks.
        vocabulary: size of the byte-level BPE vocabulary, at least 260. Tokens.
        sharpness: scale of the random weights: 1 is almost uniform over the tokens, 10 is peaked.
        tied: whether the output layer shares the embeddings' weights.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = _tokenizer(vocabulary)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=max(1, hidden_size // 32),
        num_key_value_heads=max(1, hidden_size // 32),
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=tied,
        initializer_range=0.02 * sharpness,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def write_tokenizer(folder: Path, vocabulary: int = 320) -> None:
    """Write the tokenizer alone; needs no torch."""
    _tokenizer(vocabulary).save_pretrained(folder)


def tiny_tokenizer(folder: Path) -> Any:
    """The tokenizer alone, written to ``folder`` and read as that of a model."""
    from oapl_core.model_files.model_folder import load_tokenizer

    write_tokenizer(folder)
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    return load_tokenizer(folder)


def _tokenizer(vocabulary: int) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, "<|im_start|>", END],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    core.train_from_iterator(TEXTS, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
