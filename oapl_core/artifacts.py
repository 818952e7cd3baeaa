"""A run folder: where every artifact lies, how it is written so that a crash cannot tear it, and when it is up to date.

Layout (``ls`` answers "how far did it get")::

    data/runs/<run>/run.json  ledger.jsonl  logs/
      problems.parquet  prompts.parquet
      round_00/1_rollouts/part-00000.parquet ...
      round_00/2_verdicts/part-00000.parquet ...
      round_00/3_groups.parquet
      round_00/4_checkpoint/<objective>/epoch_01/
      round_01/5_evaluation/<objective>.parquet
      report/index.html  report/report.md  report/*.png

An artifact is written under a temporary name, fsynced, renamed, and only then recorded in the ledger.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from oapl_core.config import Experiment
from oapl_core.errors import ConfigError, DataError
from oapl_core.experiment_file import differences, parse_experiment, write_settings
from oapl_core.integrity import damage, fsync, is_unchanged, mtime_ns, sha256_of, size_of
from oapl_core.ledger import ArtifactEntry, Ledger
from oapl_core.progress import say

_TEMPORARY = ".tmp-"
_MAY_CHANGE = {"estimate", "mirror", "runs_dir", "time_limits_h"}
"""Settings that say where and how a run is kept going, not what it is."""
IMPORTED = "imported_from"
"""In the ledger's details of an artifact that came from elsewhere (exchange/) and not from its stage."""
_IDENTITY = (".safetensors", ".bin")
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt",
              "chat_template.jinja", "tokenizer.model")  # fmt: skip


def policy_hash(model_dir: Path) -> str:
    """Identity of a checkpoint: hash of its weights and tokenizer, 16 hex digits.

    Raises:
        DataError: the folder is missing, or has no config or no weights.
    """
    if not (model_dir / "config.json").is_file():
        raise DataError(f"{model_dir}: is not a Hugging Face model folder (no config.json); give one to `model`")
    files = sorted(p for p in model_dir.iterdir() if p.suffix in _IDENTITY or p.name in _TOKENIZER)
    if not any(p.suffix in _IDENTITY for p in files):
        raise DataError(f"{model_dir}: has no weights (*.safetensors); copy the whole model folder")
    text = "".join(f"{p.name}\0{sha256_of(p)}\n" for p in files)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass
class Draft:
    """An artifact being written: fill ``path``, then set what the ledger should say about it."""

    path: Path
    rows: int = 0
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """An opened run folder."""

    root: Path
    config: Experiment

    @classmethod
    def create(cls, config: Experiment) -> Self:
        """Make or reopen the folder of ``config``.

        Raises:
            ConfigError: the folder was made with other settings; names them.
        """
        root = config.run_dir
        record = root / "run.json"
        if record.exists():
            run = cls.open(root)
            before, now = (c.model_dump(mode="json", exclude=_MAY_CHANGE) for c in (run.config, config))
            changed = differences(before, now)
            if changed:
                raise ConfigError(
                    f"{root}: was started with other settings ({'; '.join(changed[:5])}); "
                    "give this experiment another name=... or delete that folder"
                )
            if run.config == config:
                return run
        write_settings(root, config)
        return cls(root, config)

    @classmethod
    def open(cls, root: Path) -> Self:
        """Open an existing run folder.

        Raises:
            DataError: it is not one.
        """
        record = root / "run.json"
        try:
            content = json.loads(record.read_text())["config"]
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(f"{root}: is not a run folder (no run.json); `oapl run` makes one") from None
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise DataError(f"{record}: is not readable ({error}); delete the run folder or restore the file") from None
        return cls(root, parse_experiment(content, str(record)))

    @cached_property
    def ledger(self) -> Ledger:
        """What is finished."""
        return Ledger(self.root / "ledger.jsonl")

    # Where things lie ---------------------------------------------------------------------------------------------

    @property
    def problems(self) -> Path:
        """Every problem of every split (tables.PROBLEMS)."""
        return self.root / "problems.parquet"

    @property
    def prompts(self) -> Path:
        """Every prompt with its token ids (tables.PROMPTS)."""
        return self.root / "prompts.parquet"

    @property
    def report(self) -> Path:
        """Folder of the report."""
        return self.root / "report"

    def round_dir(self, number: int) -> Path:
        """Folder of round ``number``, counted from 0."""
        return self.root / f"round_{number:02d}"

    def rollouts(self, number: int) -> Path:
        """Folder of rollout parts (tables.ROLLOUTS)."""
        return self.round_dir(number) / "1_rollouts"

    def verdicts(self, number: int) -> Path:
        """Folder of verdict parts (tables.VERDICTS), one for each rollout part."""
        return self.round_dir(number) / "2_verdicts"

    def audit(self, number: int) -> Path:
        """What the second executor said about a share of the passes (tables.AUDITS)."""
        return self.round_dir(number) / "2_audit.parquet"

    def groups(self, number: int) -> Path:
        """What is trained on (tables.GROUPS)."""
        return self.round_dir(number) / "3_groups.parquet"

    def checkpoints(self, number: int) -> Path:
        """Folder of the objective's checkpoints."""
        return self.round_dir(number) / "4_checkpoint" / self.config.objective.name

    def checkpoint(self, number: int, epoch: int) -> Path:
        """Hugging Face folder after ``epoch`` (counted from 1)."""
        return self.checkpoints(number) / f"epoch_{epoch:02d}"

    def evaluations(self) -> Path:
        """Folder of the evaluation parts: one for each checkpoint and split (tables.EVALUATIONS)."""
        return self.round_dir(len(self.config.rounds) - 1) / "5_evaluation" / self.config.objective.name

    def evaluation(self) -> Path:
        """Every held-out and validation row of the run (tables.EVALUATIONS)."""
        return self.evaluations().with_suffix(".parquet")

    def base_model(self) -> Path:
        """The folder that round 0 samples from: ``model``, or what pretraining recorded in ``base_model.json``.

        Raises:
            DataError: pretraining has not finished.
        """
        if self.config.model is not None:
            return self.config.model
        record = self.root / "base_model.json"
        if not record.exists():
            raise DataError(f"{record}: is missing; the base model is not trained yet, run the experiment again")
        return Path(json.loads(record.read_text())["path"])

    def policy(self, number: int) -> Path:
        """The checkpoint that round ``number`` starts training at."""
        if number == 0:
            return self.base_model()
        return self.checkpoint(number - 1, self.config.rounds[number - 1].epochs)

    def behavior(self, number: int) -> Path:
        """The checkpoint that round ``number`` samples from: its ``policy``, or with `pipeline` the one before that."""
        return self.policy(max(0, number - 1) if self.config.pipeline else number)

    # Writing and resuming -----------------------------------------------------------------------------------------

    def name(self, path: Path) -> str:
        """The ledger's name for ``path``: relative to the run folder if it is inside."""
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else path.as_posix()

    def inputs(self, paths: Iterable[Path]) -> dict[str, str]:
        """Name and recorded (or computed) sha256 of each input; what an artifact depends on.

        Raises:
            DataError: an input is missing.
        """
        done, removed = self.ledger.artifacts(), self.ledger.removals()
        found = {}
        for path in paths:
            name = self.name(path)
            entry = done.get(name)
            if name in removed:  # what it was still counts
                found[name] = removed[name].sha256
                continue
            if not path.exists():
                raise DataError(f"{path}: is missing; run the experiment again to make it")
            found[name] = entry.sha256 if entry and is_unchanged(path, entry) else sha256_of(path)
        return found

    def is_done(self, path: Path, inputs: Mapping[str, str], config: Mapping[str, Any]) -> bool:
        """Whether ``path`` is recorded for exactly these inputs and settings and is still the recorded bytes.

        An artifact that would be done but is damaged is named once in the stage's progress. One that was imported is
        done whatever its stage would make it from, and one that was removed on purpose as long as it would be the same.
        """
        entry = self.ledger.artifacts().get(self.name(path))
        if entry is None:
            return False
        made_here = IMPORTED not in entry.details
        if made_here and (dict(entry.inputs) != dict(inputs) or dict(entry.config) != _plain(config)):
            return False
        wrong = None if entry.artifact in self.ledger.removals() else damage(path, entry)
        if wrong and path not in self._named:
            self._named.add(path)
            say(f"{self.name(path)} {wrong}: making it again")
        return wrong is None

    @cached_property
    def _named(self) -> set[Path]:
        """Damaged artifacts that were told of."""
        return set()

    @contextmanager
    def writing(self, path: Path, inputs: Mapping[str, str], config: Mapping[str, Any]) -> Iterator[Draft]:
        """Write one artifact: yields a temporary path, then fsyncs, renames and records it.

        If the body raises, the temporary file is removed and the old artifact, if any, stays.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(_TEMPORARY + path.name)
        _remove(temporary)
        start = time.monotonic()
        draft = Draft(temporary)
        try:
            yield draft
            fsync(temporary)
        except BaseException:
            _remove(temporary)
            raise
        _remove(path)
        temporary.rename(path)
        fsync(path.parent, below=False)  # the new name; what else lies there is not ours to wait for
        self.ledger.append(
            ArtifactEntry(
                self.name(path), sha256_of(path), size_of(path), draft.rows, dict(inputs), _plain(config),
                draft.details, round(time.monotonic() - start, 3), mtime_ns(path),
            )
        )  # fmt: skip


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON makes of the settings, so that a comparison with the ledger is exact."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(config), default=str))
    return plain


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
