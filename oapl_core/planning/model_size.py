"""Sizes of a model that decide on speed and memory: weights, layers, widths. Pure."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from oapl_core.model_files.model_folder import experts_of, positions_of
from oapl_core.token_columns import TokenColumn, columns_by


@dataclass(frozen=True)
class ModelSize:
    """Size of a model, as far as speed and memory depend on it."""

    parameters: float
    layers: int
    query_width: int
    """Heads x head size."""
    key_width: int
    """Key-value heads x head size."""
    hidden: int
    feed_forward: int
    vocabulary: int
    positions: float = math.inf
    """Longest sequence; infinite where nothing says so."""
    kept: int | None = None
    """Numbers of a token that an engine keeps for the tokens after it; None: keys and values in every layer."""
    columns: tuple[TokenColumn, ...] = ()
    """Optional columns of tokens that it has, as far as something says so."""
    idle: float = 0.0
    """Weights of experts that a token is not sent to, counted as if every layer had experts."""

    @property
    def kept_numbers(self) -> int:
        """Count of a token's kept numbers: ``kept``, or keys and values in every layer."""
        return 2 * self.layers * self.key_width if self.kept is None else self.kept

    @property
    def active(self) -> float:
        """Count of the weights that a token is multiplied with; at least those of one part in a hundred."""
        return max(self.parameters - self.idle, 0.01 * self.parameters)

    def adapter_weights(self, rank: int) -> float:
        """Count the weights of adapters of this rank beside every linear layer."""
        ends = 4 * self.hidden + 2 * self.query_width + 2 * self.key_width + 3 * (self.hidden + self.feed_forward)
        return rank * self.layers * ends

    def column_bytes(self, names: Collection[str]) -> int:
        """Count the bytes that are stored of a token for the columns of these names."""
        return sum(one.token_bytes for one in self.columns if one.name in names)

    @classmethod
    def like(cls, parameters: float) -> "ModelSize":
        """Return the usual shape of so many weights: width 110 x layers, 12 x width^2 in a layer, keys of 1024."""
        layers = max(1, round((parameters / (12 * 110**2)) ** (1 / 3)))
        width = 110 * layers
        return cls(parameters, layers, width, min(1024, width), width, 3 * width, 151_936)

    @classmethod
    def shaped(cls, parameters: float, value: Callable[[str], Any]) -> "ModelSize":
        """Read the values of a config.json, which ``value`` gives by name, or None; of other names the usual shape."""
        hidden, heads, layers = value("hidden_size"), value("num_attention_heads"), value("num_hidden_layers")
        if not all(isinstance(number, int) and number > 0 for number in (hidden, heads, layers)):
            return cls.like(max(1, parameters))
        head = value("head_dim") or hidden // heads
        return cls(
            parameters,
            layers,
            heads * head,
            (value("num_key_value_heads") or heads) * head,
            hidden,
            value("intermediate_size") or 4 * hidden,
            value("vocab_size") or 0,
            positions_of(value),
            _kept(value, layers),
            tuple(columns_by(value)),
            idle_weights(value, layers, hidden),
        )


def idle_weights(value: Callable[[str], Any], layers: int, hidden: int) -> float:
    """Count the weights of a model's experts that a token is not sent to, by the values of its config.json."""
    top_k, experts = experts_of(value) or (1, 1)
    return (
        3.0 * layers * hidden * (value("moe_intermediate_size") or value("intermediate_size") or 0) * (experts - top_k)
    )


def _kept(value: Callable[[str], Any], layers: int) -> int | None:
    """Count the least kept, of latent attention (DeepSeek's) or layers that do not all look back at everything."""
    kinds = value("layer_types")
    whole = kinds.count("full_attention") if kinds else layers // (value("full_attention_interval") or 1)
    if value("kv_lora_rank"):
        return int(whole * (value("kv_lora_rank") + (value("qk_rope_head_dim") or 0)))
    if whole == layers:
        return None
    heads = value("num_key_value_heads") or value("num_attention_heads")
    head = value("head_dim") or value("hidden_size") // value("num_attention_heads")
    return max(1, int(2 * whole * heads * head))
