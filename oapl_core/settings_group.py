"""What every group of settings is: frozen, without unknown keys, each field explained by the text below it."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Settings(BaseModel):
    """A frozen group of settings; unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=(), allow_inf_nan=False
    )
    decided: ClassVar[Mapping[str, str]] = {}
    """Keys that people look for here and that are no choice: each with the reason, for the error's line."""

    def recorded(self, younger: str, include: Collection[str] | None = None) -> dict[str, Any]:
        """The settings, or those of ``include``, as ledgers have them: of the ``younger`` ones, which runs were made
        without, only those that are not their default."""
        fields, chosen = type(self).model_fields, set(type(self).model_fields if include is None else include)
        unused = {name for name in younger.split() if getattr(self, name) == fields[name].default}
        return self.model_dump(mode="json", include=chosen - unused)
