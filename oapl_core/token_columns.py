"""Optional columns of numbers for each token: an engine reports them beside log-probs, the trained model gets them.

A row has the numbers of its prompt and its response but for the last token, which no model was given. They are
[tokens, *shape], one after the other, in a byte each. Numbers from 256 on take two bytes, the lower one first.
`sampling.NAME` asks for a column. Settings, engine, tables and trainer look here and name none.
"""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from oapl_core.model_files.model_folder import model_config

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

COLUMNS: Mapping[str, str] = {"routes": "oapl_core.routes:Routing"}
"""Class of each column, by name."""
_BYTE = 256


class TokenColumn(ABC):
    """One column, as a model has it."""

    name: ClassVar[str]
    models: ClassVar[str]
    """Models that have it, for people."""
    lacks: ClassVar[str]
    """Complaint about a model that has it not: ``has no ...``."""
    values: ClassVar[str]
    """Words for a row's numbers, for people."""
    reporter: ClassVar[str]
    """Place, ``module:object``, of the class of its ``Reporter``."""
    holder: ClassVar[str]
    """Place of what is made of a model and the column, and holds the numbers of the model's next forward pass."""

    @classmethod
    @abstractmethod
    def of(cls, value: Callable[[str], Any]) -> Self | None:
        """Derive the column from values of a config.json, which ``value`` gives by name; None where there is none."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of a token's numbers."""

    @property
    @abstractmethod
    def bound(self) -> int:
        """Number that all stored ones are below."""

    @property
    @abstractmethod
    def told(self) -> str:
        """Line for the person who trains with it."""

    @property
    def dtype(self) -> str:
        """Type of a stored number."""
        return "uint8" if self.bound <= _BYTE else "uint16"

    @property
    def token_bytes(self) -> int:
        """Bytes that are stored of a token."""
        numbers = 1 if self.bound <= _BYTE else 2
        for size in self.shape:
            numbers *= size
        return numbers

    def fits(self, stored: Any, tokens: int) -> bool:
        """Check that a row's bytes (an Arrow scalar, null for none) are numbers of so many tokens, below the bound."""
        if not stored.is_valid or stored.as_buffer().size != tokens * self.token_bytes:
            return False
        return bool((self.read(stored) < self.bound).all())

    def read(self, stored: Any) -> "NDArray[np.unsignedinteger[Any]]":
        """Read [tokens, *shape] from a row's bytes, an Arrow scalar."""
        import numpy as np

        return np.frombuffer(stored.as_buffer(), self.dtype).reshape(-1, *self.shape)


class Reporter(Protocol):
    """Source of a column's numbers in an engine; made of the ``TokenColumn``."""

    def arguments(self, on_cpu: bool) -> Mapping[str, Any]:
        """Return further arguments that the engine is started with."""

    def begin(self, engine: Any, on_cpu: bool) -> None:
        """Prepare a started engine, before its first request."""

    def of(self, key: str, tokens: int, output: Any) -> "NDArray[np.unsignedinteger[Any]]":
        """Return [tokens, *shape] of the first tokens of a finished request, and the engine's ``output`` for it."""


def imported(place: str) -> Any:
    """Import what ``module:object`` names."""
    # by name, since what shares this module must not know the stages that it names
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def column(name: str) -> type[TokenColumn]:
    """Import the class of a column."""
    found: type[TokenColumn] = imported(COLUMNS[name])
    return found


def columns_by(value: Callable[[str], Any]) -> Iterator[TokenColumn]:
    """Yield the columns that a model can have, by values of its config.json."""
    # few models have any: what is left out is no mistake until somebody asks for it
    found = (column(name).of(value) for name in COLUMNS)
    return (one for one in found if one)


def columns_of(model_dir: Path) -> dict[str, TokenColumn]:
    """Return the columns that the model of a Hugging Face folder can have, by name.

    Raises:
        DataError: config.json is missing or not readable.
    """
    config = model_config(model_dir)
    return {one.name: one for one in columns_by(config.get("text_config", config).get)}
