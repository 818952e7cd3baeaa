"""Base class of every group of settings: frozen, without unknown keys, each field explained by the text below it."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Settings(BaseModel):
    """A frozen group of settings; unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=(), allow_inf_nan=False
    )
    decided: ClassVar[Mapping[str, str]] = {}
    """Keys that people look for here and that are no choice: each with the reason, for the error's line."""
