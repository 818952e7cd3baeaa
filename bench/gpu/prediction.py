"""What a step should take on one H100, component by component: a model with its assumptions, to be compared with.

Microseconds a token. N: weights of the layers, D, I, A, K: width of the model, of the feed-forward, of all heads and of
all key heads, L: layers, T: tokens of a sequence, V: vocabulary.

    products       6 N FLOP, 2 N more for layers that are recomputed
    elementwise    bytes forward: 84 D + 56 (A + K) + 10 I as transformers computes it, 24 D + 8 (A + K) + 6 I fused;
                   times 3.2 or 3 for both directions, once more for layers that are recomputed
    attention      6 L A T FLOP, 2 L A T more where it is computed again
    output layer   8 V D FLOP and 60 V bytes an answer token

Left out: optimiser (once a step), what the host takes where it is slower than the GPU, and communication.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.gpu.shapes import HEAD, KEY_HEADS, SIZES, VOCABULARY

SHEET = 989.0
"""TFLOP/s of an H100 or H200 in bfloat16 without sparsity, by its data sheet."""


@dataclass(frozen=True)
class Assumptions:
    """Assumed of kernels on an H100, not measured but where it says so. TFLOP/s and TB/s."""

    products: tuple[tuple[float, float], ...] = ((4.4e8, 500.0), (1.4e9, 560.0), (3.6e9, 620.0))
    """Of models with so many weights in their layers, and more."""
    flash_2: float = 267.0
    """FlashAttention 2 on Hopper, both directions, as torch's kernels are."""
    flash_3: float = 530.0
    """FlashAttention 3 and 4."""
    output: float = 395.0
    """TF32 products, measured on an H100, 2026-11-22."""
    elementwise_tb: float = 2.5
    copies_tb: float = 2.98
    """A copy, measured on an H100, 2026-11-22."""


@dataclass(frozen=True)
class Predicted:
    """Microseconds a token, and what follows from them."""

    us: Mapping[str, float]
    flop: float
    """That a token needs, as oapl_core/training/speed.py counts."""

    @property
    def tokens_per_s(self) -> float:
        return 1e6 / sum(self.us.values())

    @property
    def share_of_sheet(self) -> float:
        """Model-FLOPs utilisation of the data sheet's TFLOP/s."""
        return self.flop * self.tokens_per_s / 1e12 / SHEET


def predict(
    size: str, prompt: int, length: int, training: Mapping[str, Any], assumed: Assumptions | None = None
) -> Predicted:
    """Of a step over answers of ``length`` tokens to prompts of ``prompt``, with the settings of plan.VARIANTS."""
    assumed = assumed or Assumptions()
    width, inner, layers, heads, _ = SIZES[size]
    attended, keys, tokens = heads * HEAD, KEY_HEADS * HEAD, prompt + length
    weights = layers * (2 * width * attended + 2 * width * keys + 3 * width * inner)
    answered = length / tokens
    recompute = training["recompute"]
    again = {"all": 1.0, "attention": 1.0, "none": 0.0}[recompute] if isinstance(recompute, str) else 1 / recompute
    attended_again = 0.0 if recompute == "attention" else again
    rate = max((least, rate) for least, rate in assumed.products if weights >= 0.95 * least)[1]
    fused = training["kernels"] == "liger" or training.get("compile", False)
    plain_bytes = 84 * width + 56 * (attended + keys) + 10 * inner
    fused_bytes = 24 * width + 8 * (attended + keys) + 6 * inner
    moved = (3.0 + again) * fused_bytes if fused else (3.2 + again) * plain_bytes
    flash = assumed.flash_2 if training["attention"] == "torch" else assumed.flash_3
    us = {
        "products": (6 + 2 * again) * weights / rate,
        "elementwise": layers * moved / assumed.elementwise_tb,
        "attention": (6 + 2 * attended_again) * layers * attended * tokens / flash,
        "output layer": answered * VOCABULARY * (8 * width / assumed.output + 60 / assumed.copies_tb),
    }
    flop = 6 * weights + 6 * VOCABULARY * width * answered + 6 * layers * attended * tokens
    return Predicted({name: value / 1e6 for name, value in us.items()}, flop)
