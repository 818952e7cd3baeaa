"""Activations that a backward pass computes again, in place of keeping them: each choice's memory and cost. Pure.

    none        every layer keeps all of its activations
    N           all but those of every N-th layer, which keeps what it is given
    attention   of every layer what it is given and what its attention gives, the costliest part to compute again
    all         of every layer what it is given

Numbers that a layer keeps of a token: 6 D + 4 (A + 2 K) + 4 I. In 16 bits 8 D takes the place of 6 D, as norms compute
in float32. D is the hidden size, A and K are widths of query and key heads, I is the feed-forward size. The numbers
were counted in what torch saves for Qwen and Llama; Gemma's blocks keep up to a half more.
"""

from typing import Literal

from oapl_core.planning.model_size import ModelSize

Recomputation = Literal["none", "attention", "all"] | int
"""A choice; a number N is of every N-th layer."""
CHOICES: tuple[Recomputation, ...] = ("none", 8, 4, 2, "attention", "all")
"""Among which `auto` chooses."""
RECOMPUTED_FROM = 1e9
"""Weights of a model whose layers `auto` recomputes where no GPU says how much fits."""


def recomputed_share(choice: Recomputation, model: ModelSize, tokens: float) -> float:
    """Return the share of layers' forward arithmetic that a backward pass repeats, for sequences of so many tokens."""
    if choice == "attention":
        weights = max(1.0, model.parameters - 2 * model.vocabulary * model.hidden)
        # 2 FLOPs a weight and token; each token looks at half of its sequence, once for scores and once for values
        products, attention = 2 * weights, 2 * model.layers * model.query_width * tokens
        return products / (products + attention)
    return _recomputed_layers(choice, model.layers) / model.layers


def kept_numbers(choice: Recomputation, model: ModelSize, is_wide: bool) -> float:
    """Count numbers of a token that a forward pass keeps, and those of one layer while it is computed again.

    Args:
        choice: what is computed again.
        model: its widths.
        is_wide: whether it computes in float32.
    """
    layer = (
        (6 if is_wide else 8) * model.hidden + 4 * (model.query_width + 2 * model.key_width) + 4 * model.feed_forward
    )
    again = _recomputed_layers(choice, model.layers)
    between = model.hidden + (model.query_width if choice == "attention" else 0)
    return (model.layers - again) * layer + again * between + (layer if again else 0)


def _recomputed_layers(choice: Recomputation, layers: int) -> int:
    if isinstance(choice, int):
        return -(-layers // choice)
    return 0 if choice == "none" else layers


def in_words(choice: Recomputation) -> str:
    """Return the words that a person reads of a choice."""
    if isinstance(choice, int):
        return f"1 layer in {choice} is recomputed"
    return {
        "none": "activations are kept",
        "attention": "layers are recomputed, but not their attention",
        "all": "layers are recomputed",
    }[choice]
