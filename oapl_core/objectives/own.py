"""An objective of a person's own: ``name = "module:Class"`` in ``[objective]``, a class that derives from ``Method``.

Settings are read by programs that never train, so the class is looked up only where it is needed: by the trainer, and
once before a run starts, in a process of its own.
"""

import importlib
from typing import Any, ClassVar

from pydantic import ConfigDict, ValidationError, field_validator

from oapl_core.errors import ConfigError
from oapl_core.objectives.method import Method
from oapl_core.own_function import source_hash
from oapl_core.settings_group import Settings


class OwnObjective(Settings):
    """Name of a class, and the values of its own settings."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=True)
    name: str
    """``module:Class``; the module is looked for where the run was started, then where Python looks."""
    needs_start: ClassVar[bool] = False
    """Unknown before the class is loaded, which checks it."""

    @field_validator("name")
    @classmethod
    def _has_both_names(cls, name: str) -> str:
        module, _, found = name.partition(":")
        if not (all(part.isidentifier() for part in module.split(".")) and found.isidentifier()):
            raise ValueError("write module:Class, for example my_objectives:Mine")
        return name

    @property
    def folder(self) -> str:
        """Name of the folder of its checkpoints: the class's."""
        return self.name.partition(":")[2]

    @property
    def slice(self) -> dict[str, Any]:
        """Settings that checkpoints depend on, with the source of the class: an edited one is another."""
        return self.model_dump(mode="json") | {"source_sha256": source_hash(self.name)}

    def loaded(self, reference: str) -> Method:
        """Import the class and make the objective.

        Args:
            reference: `training.reference`, which some objectives need to be "behavior".

        Raises:
            ConfigError: it cannot be imported, is no objective, or has other settings; one line.
        """
        module, _, name = self.name.partition(":")
        where = f"`objective.name`: {self.name}"
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, SyntaxError) as error:
            raise ConfigError(f"{where} cannot be imported ({type(error).__name__}: {error})") from None
        if not (isinstance(found, type) and issubclass(found, Method)):
            raise ConfigError(f"{where} does not derive from oapl_core.objectives.Method")
        try:
            made = found(**(self.model_extra or {}))
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"])) or "settings"
            raise ConfigError(f"`objective.{key}`: {first['msg']} (a setting of {self.name})") from None
        if made.needs_start and reference != "behavior":
            raise ConfigError(f"{where} needs the round's first weights, so training.reference = 'behavior'")
        return made
