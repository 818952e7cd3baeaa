"""The settings of ``[pretrain]``: a tiny base model made here, for machines without weights."""

from pathlib import Path

from pydantic import PositiveFloat, PositiveInt

from oapl_core.settings_group import Settings


class PretrainConfig(Settings):
    """A tiny base model trained from nothing, for machines without weights; the demo and the tests use it."""

    solutions: Path
    """A file of JSON lines, each with a text `statement` and a list of texts `solutions` (docs/from_nothing.md)."""
    vocabulary: PositiveInt = 1024
    """Most entries the byte-level BPE vocabulary may have. Tokens."""
    max_positions: PositiveInt = 256
    """Longest prompt plus response the model is meant for. Tokens."""
    hidden_size: PositiveInt = 128
    """Width of the model."""
    intermediate_size: PositiveInt = 384
    """Width of the MLP."""
    layers: PositiveInt = 3
    """Number of transformer blocks."""
    heads: PositiveInt = 4
    """Number of attention heads (and key-value heads)."""
    epochs: PositiveInt = 5
    """Passes over the solutions."""
    batch_size: PositiveInt = 32
    """Sequences per optimiser step."""
    learning_rate: PositiveFloat = 3e-3
    """Peak learning rate."""
    threads: PositiveInt = 2
    """Cores that it uses."""
