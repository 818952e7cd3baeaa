"""The ledger: what is finished, in one append-only file of JSON lines per run (``ledger.jsonl``).

Each line is fsynced before its writer continues. A line torn by a crash is ignored and cut off at the next append: its
artifact counts as not finished. An ``artifact`` line has name, sha256, bytes, rows, inputs, config slice and details. A
``stage`` line has one process's wall time and exit code; the report says from it where the time went. A ``removal``:
an artifact's bytes were given up on purpose (cleaning.py). A ``supersession``: an artifact is to be made again and was
put aside (redoing.py). A ``fork``: where the run comes from (forking.py). All three are made in ``changing/``.
``settings``: the content of run.json, from when it was made or changed on (run.py). A ``stop``: a person wanted the
run no further for now. Nothing is ever taken out: the
newest line about an artifact counts.
"""

import fcntl
import hashlib
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self, get_origin

from oapl_core.errors import LedgerError
from oapl_core.files import open_record


@dataclass(frozen=True)
class ArtifactEntry:
    """A finished artifact: a file or folder whose name is relative to the run folder."""

    artifact: str
    sha256: str
    bytes: int
    rows: int
    inputs: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    mtime_ns: int = 0
    identity: str = ""
    """Digest of what later artifacts depend on: a checkpoint's weights and tokenizer, not its metrics."""

    @property
    def as_input(self) -> str:
        """The digest that later artifacts record when they are made from this one."""
        return self.identity or self.sha256

    def is_input(self, digest: str) -> bool:
        """Tell whether an artifact that recorded ``digest`` was made from this one."""
        return digest in (self.sha256, self.as_input)


@dataclass(frozen=True)
class StageEntry:
    """One process of a stage: how long it took, start-up included, and how it ended."""

    stage: str
    seconds: float
    exit_code: int
    error: str = ""
    """Why it failed, in one line."""
    made: Sequence[str] = field(default_factory=list)
    """Names of its step's artifacts when it ended well. A step of which one is missing since is not finished."""
    gpus: int = 0
    """Number of GPUs that the process could use."""


@dataclass(frozen=True)
class RemovalEntry:
    """A finished artifact's bytes are gone on purpose: that is no damage, and nothing is made again for it."""

    artifact: str
    sha256: str
    """Digest of the bytes that went; a newer artifact of that name is not meant."""
    bytes: int
    """Number of bytes that went; of a checkpoint only weights go."""
    rule: str
    """Why, as `oapl clean` was asked."""


@dataclass(frozen=True)
class SupersededEntry:
    """An artifact no longer counts: a person wants it made again."""

    artifact: str
    sha256: str
    moved_to: str
    """Place of the old one now, relative to the run folder."""


@dataclass(frozen=True)
class ForkEntry:
    """The run began as a copy of what another had made before ``stage`` of ``round``; see changing/forking.py."""

    parent: str
    """Run folder of the parent."""
    round: int
    stage: str
    changes: list[str]
    """Settings that differ, in words."""
    objective: str = ""
    """Objective of the parent, which names the folders of the shared checkpoints; empty: the same as now."""


@dataclass(frozen=True)
class SettingsEntry:
    """The settings of the run; written before run.json is, which is compared with it at every opening."""

    config: Mapping[str, Any]
    sha256: str
    """Digest of ``config`` as JSON with sorted keys: a damage of this line is not taken for one of run.json."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Make the line of settings as JSON has them."""
        return cls(config, hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest())


@dataclass(frozen=True)
class StopEntry:
    """The run stopped on purpose, with work left; it holds until a process of a stage ends."""

    reason: str
    """Words that follow "stopped": where, and why."""


Entry = ArtifactEntry | StageEntry | RemovalEntry | SupersededEntry | ForkEntry | SettingsEntry | StopEntry
_KINDS: dict[str, type[Entry]] = {
    "artifact": ArtifactEntry,
    "stage": StageEntry,
    "removal": RemovalEntry,
    "supersession": SupersededEntry,
    "fork": ForkEntry,
    "settings": SettingsEntry,
    "stop": StopEntry,
}


_LONGEST_PATH, _LONGEST_NAME = 4000, 255
"""Bytes; what Linux takes, with room for the run folder's own path."""


class Records:
    """Records from all lines of a ledger together."""

    def __init__(self) -> None:
        """Begin without any line."""
        self.entries: list[Entry] = []
        """Every line that is known, in order."""
        self.artifacts: dict[str, ArtifactEntry] = {}
        """The newest of each name, in the order in which they were first finished."""
        self.removals: dict[str, RemovalEntry] = {}
        """Lines about the artifacts whose bytes are gone on purpose."""
        self.stages: list[StageEntry] = []
        self.superseded: set[str] = set()
        """Names that are to be made again and are not yet."""
        self.forks: list[ForkEntry] = []
        """Forks that the run comes from, the last fork first."""
        self.settings: list[SettingsEntry] = []
        """The last two: run.json is the newer one, or, where a process was killed as it changed it, the one before."""
        self.stop: StopEntry | None = None

    def note(self, entry: Entry | None) -> None:
        """Take in the next line."""
        if entry:
            self.entries.append(entry)
        if isinstance(entry, ArtifactEntry):
            self.artifacts[entry.artifact] = entry
            self.removals.pop(entry.artifact, None)
            self.superseded.discard(entry.artifact)
        elif isinstance(entry, StageEntry):
            self.stages.append(entry)
            self.stop = None
        elif isinstance(entry, StopEntry):
            self.stop = entry
        elif isinstance(entry, ForkEntry):
            self.forks.append(entry)
        elif isinstance(entry, SettingsEntry):
            self.settings = [*self.settings[-1:], entry]
        # By hash: a line about older bytes of that name came from a process that had not seen the newer ones.
        elif entry and entry.artifact in self.artifacts and self.artifacts[entry.artifact].sha256 == entry.sha256:
            if isinstance(entry, RemovalEntry):
                self.removals[entry.artifact] = entry
            else:
                del self.artifacts[entry.artifact]
                self.superseded.add(entry.artifact)
                self.removals.pop(entry.artifact, None)


class Ledger:
    """Reads and appends ``path``; safe for several processes of one run. Reads only what is new since it last did."""

    def __init__(self, path: Path) -> None:
        """Keep ``path``; the file need not exist yet."""
        self.path = path
        self._forget()

    def artifacts(self) -> dict[str, ArtifactEntry]:
        """Return the newest entry of every artifact, in the order in which they were first finished."""
        self._catch_up()
        return dict(self._records.artifacts)

    def removals(self) -> dict[str, RemovalEntry]:
        """Return the removals of the artifacts whose bytes are gone on purpose."""
        self._catch_up()
        return dict(self._records.removals)

    def stages(self) -> list[StageEntry]:
        """List every stage process that ended, in order."""
        self._catch_up()
        return list(self._records.stages)

    def stop(self) -> StopEntry | None:
        """Return why the run is stopped; None if it is not, or a stage ended since."""
        self._catch_up()
        return self._records.stop

    def entries(self) -> list[Entry]:
        """List every line of a kind that is known, in order."""
        self._catch_up()
        return list(self._records.entries)

    def has_made(self, name: str) -> bool:
        """Tell whether an artifact of that name was ever made, also if it was put aside or its line is gone since."""
        self._catch_up()
        known = name in self._records.artifacts or name in self._records.superseded
        return known or any(name in entry.made for entry in self._records.stages)

    def superseded(self) -> set[str]:
        """Names of artifacts that are to be made again and are not yet."""
        self._catch_up()
        return set(self._records.superseded)

    def forks(self) -> list[ForkEntry]:
        """List where the run comes from: its own fork first, then those of its ancestors; empty for most runs."""
        self._catch_up()
        return list(self._records.forks)

    def settings(self) -> list[SettingsEntry]:
        """List the settings that run.json may hold, the newest last."""
        self._catch_up()
        return list(self._records.settings)

    def append(self, entry: Entry) -> None:
        """Add one entry and fsync it.

        Raises:
            OSError: the disk is full or read-only; nothing is half-recorded (the torn line is ignored).
        """
        kind = next(kind for kind, type_ in _KINDS.items() if isinstance(entry, type_))
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = json.dumps({"kind": kind, "at": stamp, **entry.__dict__}, sort_keys=True, default=str) + "\n"
        with self.path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            _cut_torn_line(file)
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())  # before the lock goes: who reads the line next may act on it

    def _forget(self) -> None:
        self._file = (0, 0)
        """Device and inode of what was read."""
        self._offset = self._read = 0
        """Bytes and lines read."""
        self._records = Records()

    def _catch_up(self) -> None:
        """Read the whole lines that follow what was read; everything, if this is no longer the file it was."""
        try:
            file = open_record(self.path)
        except FileNotFoundError:
            self._forget()
            return
        with file:
            now = os.fstat(file.fileno())
            # A fetch or a person's restore replaces the file; a smaller one was cut. Both make what was read void.
            if (now.st_dev, now.st_ino) != self._file or now.st_size < self._offset:
                self._forget()
                self._file = (now.st_dev, now.st_ino)
            file.seek(self._offset)
            *lines, _torn = file.read().split(b"\n")
        for line in lines:
            if line:
                self._records.note(_parse(line, f"{self.path}: line {self._read + 1}"))
            self._offset += len(line) + 1
            self._read += 1


def records_of(lines: bytes, where: str = "") -> Records:
    """Parse whole lines of a ledger; ``where`` it lies stands before the number of a line that is none."""
    records = Records()
    for number, line in enumerate(lines.split(b"\n"), 1):
        if line:
            records.note(_parse(line, f"{where}line {number}"))
    return records


def artifacts_of(lines: bytes) -> dict[str, ArtifactEntry]:
    """Return the newest entry of every artifact in whole lines of a ledger."""
    return records_of(lines).artifacts


def _parse(line: bytes, where: str) -> Entry | None:
    """None for a kind of entry that a later version may add."""
    try:
        content = json.loads(line)
        kind = _KINDS.get(content.pop("kind"))
        content.pop("at")
        if kind is None:
            return None
        _check_types(kind, content)
        entry = kind(**content)
        if isinstance(entry, SettingsEntry) and entry != SettingsEntry.of(entry.config):
            raise ValueError("its settings are not those that were written")
        return entry
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        why = "" if isinstance(error, json.JSONDecodeError) else f" ({error})"
        raise LedgerError(f"{where} is not a ledger entry{why}; restore it or delete the line") from None


def _check_types(kind: type[Entry], content: Mapping[str, Any]) -> None:
    for field_ in fields(kind):
        types: Any = get_origin(field_.type) or field_.type
        types = (int, float) if types is float else types
        if field_.name in content and not isinstance(content[field_.name], types):
            raise TypeError(f"{field_.name} is {content[field_.name]!r:.60}")
    if not 0.0 <= content.get("seconds", 0.0) < math.inf:  # false for NaN, which Python reads and nobody can show
        raise ValueError(f"seconds is {content['seconds']!r:.60}")
    for name in filter(None, (content.get("artifact"), content.get("moved_to"))):
        if "\0" in name or len(os.fsencode(name)) > _LONGEST_PATH or _longest_part(name) > _LONGEST_NAME:
            raise ValueError(f"no file can be called {name!r:.60}")


def _longest_part(name: str) -> int:
    return max(len(os.fsencode(part)) for part in name.split("/"))


def _cut_torn_line(file: Any) -> None:
    """Drop what follows the last newline: half a line that a crash left."""
    size = file.seek(0, os.SEEK_END)
    if size == 0:
        return
    file.seek(0)
    content = file.read()
    if not content.endswith(b"\n"):
        file.truncate(content.rfind(b"\n") + 1)
    file.seek(0, os.SEEK_END)
