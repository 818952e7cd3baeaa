"""Folders for temporary files that a killed process leaves for the next start to remove.

Each is locked by whoever uses it; one that nobody locks any more was left by a power cut or a SIGKILL. Its name says
which machine made it: on a disk that several share a lock may be seen by its own machine alone.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_FRESH_S = 2.0


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a new folder in TMPDIR that goes with the body, or with the next start if this process is killed."""
    folder, lock = locked_folder()
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def locked_folder() -> tuple[str, int]:
    """Make a new folder in TMPDIR, and a descriptor that locks it for as long as any process has it open.

    Folders of this machine that nobody locks are removed first.
    """
    for old in Path(tempfile.gettempdir()).glob(f"{_prefix()}*"):
        with suppress(OSError):  # another user's, or gone since
            if _is_free(old):
                shutil.rmtree(old)
    folder = tempfile.mkdtemp(prefix=_prefix())
    lock = os.open(folder, os.O_RDONLY)
    with suppress(OSError):  # a file system without locks: then nobody can take it either
        fcntl.flock(lock, fcntl.LOCK_EX)
    return folder, lock


def _prefix() -> str:
    # short, as sockets lie below such folders (paths of 107 characters)
    return f"oapl-tmp-{hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:6]}-"


def _is_free(folder: Path) -> bool:
    # another process may be about to lock what it has just made
    if folder.stat().st_uid != os.getuid() or time.time() - folder.stat().st_mtime < _FRESH_S:
        return False
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)
    return True
