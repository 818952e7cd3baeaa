"""Base class of every group of settings: frozen, without unknown keys, each field explained by the text below it."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Share = Annotated[float, Field(gt=0.0, lt=1.0)]


def _marked(schema: dict[str, Any], group: type["Settings"]) -> None:
    for name in group.changes_nothing:
        schema["properties"][name]["changesNothing"] = True
    for name in group.may_change:
        schema["properties"][name]["mayChange"] = True


class Settings(BaseModel):
    """A frozen group of settings; unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        protected_namespaces=(),
        allow_inf_nan=False,
        json_schema_extra=_marked,
    )
    decided: ClassVar[Mapping[str, str]] = {}
    """Keys that people look for here and that are no choice: each with the reason, for the error's line."""
    changes_nothing: ClassVar[frozenset[str]] = frozenset()
    """Fields that change no number but by rounding: where something is, how fast or how safely it is done, what is
    shown."""

    may_change: ClassVar[frozenset[str]] = frozenset()
    """Fields among them that may be others each time an unfinished run is continued."""

    @property
    def slice(self) -> dict[str, Any]:
        """Settings that artifacts depend on, recorded with each: all fields but those that change no number."""
        dumped = self.model_dump(mode="json", exclude=set(self.changes_nothing))
        groups = {name: value for name in dumped if isinstance(value := getattr(self, name, None), Settings)}
        return dumped | {name: group.slice for name, group in groups.items()}
