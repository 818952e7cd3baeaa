"""An evaluation folder: what `oapl evaluate` makes, with a ledger as a run's, so that it goes on where it was left.

Layout::

    data/evaluations/<name>/evaluation.json  ledger.jsonl  logs/
      problems.parquet  prompts_<tokenizer>.parquet
      answers/<label>-00000.parquet ...
      answers.parquet  card.json  card.md
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from oapl_core.errors import ConfigError, DataError
from oapl_core.files import sha256_of
from oapl_core.run_folder.recorded import Recorded
from oapl_core.settings.experiment_file import differences, parse_as, write_record
from oapl_core.settings.measurement import MeasurementConfig, ModelConfig

_RECORD = "evaluation.json"
_MAY_CHANGE = {"engine_python"}


def parse(values: Any, where: str) -> MeasurementConfig:
    """Validate settings; ``where`` names their origin.

    Raises:
        ConfigError: one line that says what is wrong with which.
    """
    return parse_as(MeasurementConfig, values, where)


@dataclass(frozen=True)
class Measurement(Recorded):
    """An opened evaluation folder."""

    config: MeasurementConfig

    @classmethod
    def create(cls, root: Path, config: MeasurementConfig) -> Self:
        """Make or reopen the folder.

        Raises:
            ConfigError: it was made with other settings, or is something else.
        """
        record = root / _RECORD
        if record.exists():
            before, now = (c.model_dump(mode="json", exclude=_MAY_CHANGE) for c in (cls.open(root).config, config))
            if changed := differences(before, now):
                raise ConfigError(
                    f"{root}: was started with other settings ({'; '.join(changed[:5])}); choose another with --to"
                )
        elif root.exists() and any(path.name != "run.lock" for path in root.iterdir()):
            raise ConfigError(f"{root}: is not empty and no evaluation folder; choose another with --to")
        write_record(record, config.model_dump(mode="json"))
        return cls(root, config)

    @classmethod
    def open(cls, root: Path) -> Self:
        """Open an existing folder.

        Raises:
            DataError: it is not one.
        """
        try:
            content = json.loads((root / _RECORD).read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(f"{root}: is not an evaluation folder (no {_RECORD}); `oapl evaluate` makes one") from None
        except json.JSONDecodeError as error:
            raise DataError(f"{root / _RECORD}: is not readable ({error}); delete the folder") from None
        return cls(root, parse(content, str(root / _RECORD)))

    @property
    def python(self) -> Path | None:
        """The stage's interpreter."""
        return self.config.engine_python

    @property
    def problems(self) -> Path:
        """The problems that are asked (tables.PROBLEMS)."""
        return self.root / "problems.parquet"

    def prompts(self, tokenizer: str) -> Path:
        """Prompts for models with this tokenizer (tables.PROMPTS)."""
        return self.root / f"prompts_{tokenizer}.parquet"

    def parts(self, model: ModelConfig) -> Path:
        """Beginning of the names of a model's parts (tables.EVALUATIONS)."""
        return self.root / "answers" / re.sub(r"[^A-Za-z0-9._-]+", "_", model.label)

    @property
    def answers(self) -> Path:
        """Every row (tables.EVALUATIONS)."""
        return self.root / "answers.parquet"

    @property
    def card(self) -> Path:
        """Everything that is needed to repeat it, and the results."""
        return self.root / "card.json"

    @property
    def card_text(self) -> Path:
        """The same for people."""
        return self.root / "card.md"

    @property
    def is_finished(self) -> bool:
        """Whether the card is written and still what was recorded."""
        done = self.ledger.artifacts()
        found = [done.get(self.name(path)) for path in (self.answers, self.card, self.card_text)]
        return all(entry and self.is_done(self.root / entry.artifact, entry.inputs, entry.config) for entry in found)

    def turns(self) -> Iterator[None]:
        """As often as the stage must be started until every model is measured: once for each architecture."""
        for _ in self.config.models:
            yield
            if self.is_finished and not self.changed:
                return

    @property
    def changed(self) -> list[str]:
        """Models and problem files that are no longer what was measured; one that is gone did not change."""
        done = self.ledger.artifacts()
        outside = {name: digest for entry in done.values() for name, digest in entry.inputs.items() if name not in done}
        return [name for name, digest in outside.items() if Path(name).exists() and sha256_of(Path(name)) != digest]
