"""The SHA-256, size and modification time of a file or of a whole folder, and fsync of it."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path


def sha256_of(path: Path) -> str:
    """Hash of a file, or of a folder's relative names and contents."""
    if path.is_dir():
        names = sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())
        found = zip(names, hashes_of([path / name for name in names]), strict=True)
        return hashlib.sha256("".join(f"{name}\0{value}\n" for name, value in found).encode()).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hashes_of(files: list[Path]) -> list[str]:
    """``sha256_of`` of each, several at once: a model's weights are many gigabytes in several files."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        return list(threads.map(sha256_of, files))


def sha256_once(path: Path) -> str:
    """As ``sha256_of``; what has not changed since, by its inodes, sizes and times, is not read again."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    found = ((file, file.stat()) for file in files)
    return _hashed(path, tuple((f, s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for f, s in found))


@lru_cache(64)
def _hashed(path: Path, _state: object) -> str:
    return sha256_of(path)


def fsync(path: Path, below: bool = True) -> None:
    """Wait until a file, or a folder's own entries and (unless not ``below``) everything in it, is on the disk."""
    for item in [*(path.rglob("*") if below and path.is_dir() else ()), path]:
        descriptor = os.open(item, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    files = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
    return sum(p.stat().st_size for p in files)


def mtime_ns(path: Path) -> int:
    """Modification time of a file, or of the newest in a folder. Nanoseconds."""
    files = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
    return max((p.stat().st_mtime_ns for p in files), default=0)
