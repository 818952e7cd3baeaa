"""Where the problem sets come from: data/sources.toml, files on a disk, or a repository of the hub at one commit.

Reads data/sources.toml and lists files; a download goes to the hub library's own cache.
"""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from oapl_core import plugins
from oapl_core.errors import ConfigError, DataError
from oapl_core.settings.problems import FILE_KINDS
from oapl_core.settings_group import Settings
from oapl_core.shipped import shipped

SOURCES = shipped("data/sources.toml")
_HERE = "path=PATH (of `oapl evaluate`: problems.path=PATH)"
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SPLIT = re.compile(r"(?<![a-z])(train|test|dev|val)(?:idation)?(?![a-z])")
"""Words for splits in names of files."""


class Source(Settings):
    """A table of data/sources.toml, which says what each key means."""

    name: str
    format: str
    files: tuple[str, ...]
    licence: str
    hub: str | None = None
    revision: str | None = None
    split: Literal["train", "heldout"] = "train"
    rows: int | None = None
    releases: tuple[int, ...] = ()
    """Problems in each release; release n is the first n files."""
    sha256: dict[str, str] = Field(default_factory=dict)
    """Digests by name, of files that were checked."""


def sources() -> dict[str, Source]:
    """Read every problem set, by name."""
    tables: dict[str, dict[str, Any]] = tomllib.loads(SOURCES.read_text(encoding="utf-8"))
    return {name: Source(name=name, **table) for name, table in tables.items()}


def source(name: str) -> Source:
    """Return the set of that name. Raises ConfigError if there is none; names those that are."""
    known = sources()
    theirs = [given for given in plugins.names("importer") if given not in plugins.BUILT_IN["importer"]]
    if name in theirs or plugins.is_place(name):
        return Source(name=name.rpartition(":")[2], format=name, files=(), licence="not said")
    if name not in known:
        raise ConfigError(
            f"there is no problem set {name!r}; known are {', '.join([*known, *theirs])}, or name a reader of "
            "your own as module:function"
        )
    return known[name]


def released_files(source: Source, release: str | None) -> tuple[tuple[str, ...], int | None]:
    """Return the files of a release (`v5`; unset: all files) and the number of rows that they should have.

    Raises:
        ConfigError: the set has no such release.
    """
    if release is None:
        return source.files, source.releases[-1] if source.releases else source.rows
    number = int(release[1:]) if re.fullmatch(r"v\d+", release) else 0
    if not 1 <= number <= len(source.releases):
        has = f"v1 to v{len(source.releases)}" if source.releases else "none"
        raise ConfigError(f"{source.name} has no release {release!r}; it has {has}")
    return source.files[:number], source.releases[number - 1]


def local_files(path: Path, patterns: Sequence[str]) -> list[Path]:
    """List the files to read: ``path`` itself, or the matching files of a folder, in the order of the patterns.

    A folder that has only some of several named files is refused. A folder that has none gives all its readable files,
    unless their names say that they are different splits.

    Raises:
        DataError: there is nothing to read, or more than one split.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"{path}: there is no such file or folder")
    # By its path in the repository, else by its name alone: a folder into which single files were copied.
    matches = [sorted(path.glob(pattern)) or sorted(path.glob(Path(pattern).name)) for pattern in patterns]
    if any(matches):
        pairs = zip(patterns, matches, strict=True)
        if missing := [pattern for pattern, files in pairs if not files and "*" not in pattern]:
            raise DataError(f"{path}: {', '.join(missing)} is missing; fetch it too, or give one file")
        return [file for files in matches for file in files]
    readable = sorted(file for file in path.iterdir() if file.is_file() and file.name.endswith(FILE_KINDS))
    if not readable:
        raise DataError(f"{path}: has no file to read; wanted are {', '.join(patterns) or '.jsonl or .parquet'}")
    if len({split for file in readable for split in _SPLIT.findall(file.name.lower())}) > 1:
        names = ", ".join(file.name for file in readable)
        raise DataError(f"{path}: has files of several splits ({names}); give the one you want")
    return readable


def fetch(source: Source, files: Sequence[str], revision: str | None) -> Path:
    """Fetch ``files`` of the set's repository at one commit, from the hub or its cache; returns their folder.

    Raises:
        ConfigError: the set is in no repository, or no commit is given.
        DataError: it cannot be fetched.
    """
    if source.hub is None:
        raise ConfigError(f"{source.name} has no repository; give a file with {_HERE}")
    commit = revision or source.revision or ""
    if not _COMMIT.fullmatch(commit):
        raise ConfigError(
            f"{source.name}: say which commit of {source.hub} to read with revision= (40 hex digits, from the "
            f"repository's history), or give a copy with {_HERE}; a name alone may mean other rows tomorrow"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(source.hub, repo_type="dataset", revision=commit, allow_patterns=list(files)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(
            f"{source.hub} at {commit[:12]}: cannot be fetched ({reason:.160}); fetch it elsewhere and give {_HERE}"
        ) from None
