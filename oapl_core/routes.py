"""Routes: the experts that an engine sent each token to, in every layer, and how a row stores them.

A row has the routes of its prompt and its response but for the last token, which no model was given. They are numbers
of experts, [tokens, layers, top_k], one after the other, in a byte each. A model with more than 256 experts has two
bytes, the lower one first. Layers without experts have zeros.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oapl_core.model_files.model_folder import model_config

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names in a config.json; families differ."""
_BYTE = 256


@dataclass(frozen=True)
class Routing:
    """How many experts a model has, and how many a token is sent to."""

    layers: int
    """Layers, also those without experts."""
    top_k: int
    experts: int
    """Experts in a layer."""

    @property
    def dtype(self) -> str:
        """Type of a stored number."""
        return "uint8" if self.experts <= _BYTE else "uint16"

    @property
    def token_bytes(self) -> int:
        """Bytes that are stored of a token."""
        return self.layers * self.top_k * (1 if self.experts <= _BYTE else 2)

    def fits(self, stored: Any, tokens: int) -> bool:
        """Check that a row's bytes (an Arrow scalar, null for none) are routes of so many tokens to experts that
        exist.
        """
        if not stored.is_valid or stored.as_buffer().size != tokens * self.token_bytes:
            return False
        return bool((self.read(stored) < self.experts).all())

    def read(self, stored: Any) -> "NDArray[np.unsignedinteger[Any]]":
        """Read [tokens, layers, top_k] from a row's bytes, an Arrow scalar."""
        import numpy as np

        return np.frombuffer(stored.as_buffer(), self.dtype).reshape(-1, self.layers, self.top_k)


def routing(value: Callable[[str], Any]) -> Routing | None:
    """Derive the routing from values of a config.json, which ``value`` gives by name; None where there are no
    experts.
    """
    experts = next(filter(None, map(value, _EXPERTS)), None)
    values = [value("num_hidden_layers"), value("num_experts_per_tok"), experts]
    numbers = [number for number in values if isinstance(number, int) and number > 0]
    return Routing(*numbers) if len(numbers) == len(values) else None


def routing_of(model_dir: Path) -> Routing | None:
    """Read the routing of a Hugging Face folder; None if its model has no experts.

    Raises:
        DataError: config.json is missing or not readable.
    """
    config = model_config(model_dir)
    return routing(config.get("text_config", config).get)
