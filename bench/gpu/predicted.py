"""What a step on one H100 should take, by the component model: a product of sizes and assumed efficiencies, no measure.

Microseconds a token, for L layers, hidden size D, A = query heads x head size, K = key heads x head size, feed-forward
size I, vocabulary V, answers of T tokens:

    matrix products  6 N / speed, a third more where every layer is recomputed; N weights but the embeddings
    elementwise      bytes that norms, rotary embedding and SwiGLU move, at 2.5 TB/s
    attention        8 L A T / speed, causal, recomputed
    output layer     8 V D at TF32's speed, and 60 V bytes; with 16-bit operands half of that

Assumed speeds (TFLOP/s): products 500, 620, 680 at D up to 1,024, 2,560 and above; attention 267 by FlashAttention 2's
kernels, 530 by 3's and 4's. Good to about 15 %, to be replaced by a profile.
"""

from typing import NamedTuple

from bench.gpu.layers import SIZES, VOCABULARY

_HEAD, _KEY_HEADS, _SHEET = 128, 8, 989e12


class Prediction(NamedTuple):
    """Of a step."""

    tokens_per_s: float
    utilisation: float
    """Share of 989 TFLOP/s (NVIDIA's data sheet, bfloat16 without sparsity) that the mathematics needs."""


def predict(size: str, length: int, mended: bool) -> Prediction:
    """For a size of Qwen3 and answers of ``length`` tokens; ``mended``: fused layers, FlashAttention 3 or 4."""
    hidden, forward, layers, heads, _ = SIZES[size]
    queries, keys = heads * _HEAD, _KEY_HEADS * _HEAD
    weights = layers * (hidden * (2 * queries + 2 * keys) + 3 * hidden * forward)
    products = (500 if hidden <= 1024 else 620 if hidden <= 2560 else 680) * 1e12
    gemm = 6 * weights * 4 / 3 / products
    fused = 24 * hidden + 8 * (queries + keys) + 6 * forward
    plain = 84 * hidden + 56 * (queries + keys) + 10 * forward
    moved = 4.0 * fused if mended else 4.2 * plain
    elementwise = layers * moved / 2.5e12
    attention = 8 * layers * queries * length / ((530 if mended else 267) * 1e12)
    head = 8 * VOCABULARY * hidden / 320e12 + 60 * VOCABULARY / 2.5e12
    seconds = gemm + elementwise + attention + head
    needed = 6 * weights + 6 * VOCABULARY * hidden + 6 * layers * queries * length
    return Prediction(1 / seconds, needed / seconds / _SHEET)
