"""Is a run folder what its ledger says? Reads artifacts' bytes; names what is damaged and has it made again.

A stage looks at size and modification time, which find what a person or a crash did; a disk that flips a bit changes
neither. Readers of Parquet notice by page checksums (``tables.py``); here everything is compared, model weights too.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oapl_core.files import mtime_ns, sha256_of, size_of
from oapl_core.run_folder.ledger import ArtifactEntry

if TYPE_CHECKING:
    from oapl_core.run_folder.recorded import Recorded
    from oapl_core.run_folder.run import Run


_MOST_BYTES = 32 * 2**30
"""To read when a stage has failed: half a minute at a gigabyte a second. `oapl check` reads everything."""


def is_unchanged(path: Path, entry: ArtifactEntry) -> bool:
    """Tell whether size and modification time are the recorded ones; says nothing about a disk's bit flips."""
    return size_of(path) == entry.bytes and mtime_ns(path) == entry.mtime_ns


def is_intact(path: Path, entry: ArtifactEntry) -> bool:
    """Tell whether ``path`` exists and holds the recorded bytes; hash only if the modification time differs."""
    return damage(path, entry) is None


def damage(path: Path, entry: ArtifactEntry, thorough: bool = False) -> str | None:
    """Say in a few words how an artifact is damaged; None if it holds the recorded bytes.

    Bytes are hashed only if the modification time differs, or always if ``thorough``: a disk's bit flip keeps both size
    and time.
    """
    if not path.exists():
        return "is gone"
    if not thorough and is_unchanged(path, entry):
        return None
    size = size_of(path)
    if size != entry.bytes:
        return f"has {size:,} bytes instead of {entry.bytes:,}"
    return None if sha256_of(path) == entry.sha256 else "does not hold the bytes that were recorded"


@dataclass(frozen=True)
class Finding:
    """An artifact, or a file outside the run folder that some were made from, and what is wrong with it if anything."""

    name: str
    wrong: str | None


def findings(run: "Run") -> Iterator[Finding]:
    """Compare every artifact, and every input from outside the run folder, with its recorded SHA-256.

    A damaged artifact's modification time is set to now, so that the next run sees it and makes it again. Besides it,
    that run makes again only what was made from other bytes than those that come out.
    """
    artifacts, removed = run.ledger.artifacts(), run.ledger.removals()
    for name, entry in artifacts.items():
        path = run.root / name
        if name in removed:  # on purpose
            continue
        wrong = damage(path, entry, thorough=True)
        if wrong and path.exists():
            _make_stale(path)
        yield Finding(name, wrong)
    recorded = {name: digest for entry in artifacts.values() for name, digest in entry.inputs.items()}
    for name in sorted(recorded.keys() - artifacts.keys() - run.ledger.superseded()):
        yield Finding(name, _change(run.place(Path(name)), recorded[name]))


def rotten_files(run: "Recorded", most_bytes: int = _MOST_BYTES) -> tuple[list[str], int]:
    """Find the names of the recorded files that do not hold their bytes any more, and how many were not looked at.

    A disk's bit flip changes neither size nor time, so nothing else would find one; the next start makes such a file
    again. The newest are read first, ``most_bytes`` in all: a stage reads what was made last. Folders are left out:
    whoever loads weights or a saved state compares them itself.
    """
    removed, found, left = run.ledger.removals(), list[str](), most_bytes
    files = [one for one in run.ledger.artifacts().items() if one[0] not in removed and (run.root / one[0]).is_file()]
    unread = 0
    for name, entry in reversed(files):
        if entry.bytes > left:
            unread += 1
            continue
        left -= entry.bytes
        if damage(run.root / name, entry, thorough=True):
            _make_stale(run.root / name)
            found.append(name)
    return found, unread


def _make_stale(path: Path) -> None:
    for file in (p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]:
        os.utime(file)


def _change(path: Path, digest: str) -> str | None:
    if not path.exists():
        return "is gone; what was made from it would be made again from another"
    now = sha256_of(path)
    return None if now == digest else f"was {digest[:16]} and is {now[:16]}; what was made from it will be made again"
