"""vLLM's cache from round to round: what it compiled and measured for one checkpoint serves the next.

Its key holds the path of the model's folder (vllm-project/vllm#53193), and every epoch has a folder of its own. So an
engine starts through a link in the cache, whose name comes from config.json. Engines of one checkpoint share a link; an
engine of another takes the next one. So no link moves while an engine has it. A lock of the kernel says who has it, and
ends with its process.

vLLM's key leaves out the share of memory that an engine may take. The measured room for keys and values depends on that
share (v1/worker/startup_plan.py keeps the room). So the link's name comes from the engine's settings, too.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

from oapl_core.errors import ConfigError
from oapl_core.progress import say
from oapl_core.run_folder.lock import acquire
from oapl_core.settings.experiment import EngineConfig

_FOREVER = float("inf")
_DECIDING = {"gpu_memory_utilization", "options"}
"""Settings of `[engine]` that vLLM's key may leave out."""


def cache_folder() -> Path:
    """Return the folder of vLLM's cache and of our links: VLLM_CACHE_ROOT, or a folder of the user."""
    of_user = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "vllm"
    return Path(os.environ.get("VLLM_CACHE_ROOT") or of_user).expanduser()


@contextmanager
def stable_path(model_dir: Path, config: EngineConfig) -> Iterator[Path]:
    """Yield a path to ``model_dir`` that checkpoints of its architecture share, as long as the context lasts.

    It is ``model_dir`` itself, and a line says so, where the cache cannot be written.
    """
    with ExitStack() as stack:
        try:
            path = stack.enter_context(_link(model_dir, config))
        except (OSError, ConfigError) as error:
            say(f"{cache_folder()}: {error}; vLLM compiles this model again (set VLLM_CACHE_ROOT to another folder)")
            path = model_dir
        yield path


@contextmanager
def _link(model_dir: Path, config: EngineConfig) -> Iterator[Path]:
    folder, target = cache_folder() / "oapl", model_dir.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    decides = config.model_dump_json(include=_DECIDING).encode()
    name = hashlib.sha256((model_dir / "config.json").read_bytes() + decides).hexdigest()[:16]
    for number in count():
        link = folder / f"{name}_{number}"
        with _lock_file(link.with_suffix(".lock")) as lock:
            if _lead(link, target, lock):
                yield link
                return


@contextmanager
def _lock_file(path: Path) -> Iterator[int]:
    """Yield the descriptor of the lock file; it is unlocked at the end."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield descriptor
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough while a forked worker has a copy
        os.close(descriptor)


def _lead(link: Path, target: Path, lock: int) -> bool:
    """Have the link lead to ``target`` and share its lock; False if others have it lead elsewhere."""
    while True:
        if acquire(lock, fcntl.LOCK_EX, 0.0):
            new = link.with_suffix(f".{os.getpid()}")
            new.unlink(missing_ok=True)
            new.symlink_to(target)
            new.replace(link)
        # From alone to shared is not one step, so somebody may come between; and nobody stays alone for long.
        acquire(lock, fcntl.LOCK_SH, _FOREVER)
        if link.is_symlink():
            return link.readlink() == target


@contextmanager
def compiled_once(key: str) -> Iterator[None]:
    """Let one of the engines that start with ``key`` compile; the others wait, and find what it left in the cache."""
    done = cache_folder() / "oapl" / f"{key}.compiled"
    with ExitStack() as stack:
        try:
            done.parent.mkdir(parents=True, exist_ok=True)
            if not done.exists():
                lock = stack.enter_context(_lock_file(done.with_suffix(".lock")))
                if not acquire(lock, fcntl.LOCK_EX, 0.0):
                    say("another engine compiles this model for the first time; this one starts when that is done")
                    acquire(lock, fcntl.LOCK_EX, _FOREVER)
                if done.exists():
                    stack.close()
        except (OSError, ConfigError) as error:
            say(f"{done.parent}: {error}; engines that start together compile the same")
        yield
        with suppress(OSError):
            done.touch()
