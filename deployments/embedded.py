"""Runs a flow with no server to start: a Prefect server of our own, quiet, offline, that ends with us.

If PREFECT_API_URL or a Prefect profile says where a server is, that one is used. Prefect's own ephemeral server would
outlive a SIGKILL of its client; this one stands under the same guard as the stages.
"""

import logging
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

from oapl_core.errors import StageFailed
from oapl_core.launch import guarded

_START_S = 180.0  # 4 s on two idle cores; minutes where the file system is cold and shared


def settings(home: Path) -> Mapping[str, str]:
    """Prefect settings for an embedded run; whatever the environment already says wins."""
    return {
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_MEMO_STORE_PATH": str(home / "memo_store.toml"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
        "PREFECT_LOGGING_LEVEL": "CRITICAL",  # failures are reported once, by us, in one line
        "PREFECT_LOGGING_TO_API_ENABLED": "false",  # the run folder keeps the logs
        "PREFECT_LOGGING_SERVER_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
    }


def uses_a_server() -> bool:
    """Whether the environment or a profile names a Prefect server."""
    profiles = Path.home() / ".prefect" / "profiles.toml"
    return "PREFECT_API_URL" in os.environ or (profiles.exists() and "PREFECT_API_URL" in profiles.read_text())


@contextmanager
def prefect_for(folder: Path, cache_dir: Path, handler: logging.Handler) -> Iterator[None]:
    """A server to run flows with in the body; progress lines go to ``handler``, the server's log to ``folder``/logs.

    Raises:
        StageFailed: no server comes up.
    """
    logger = logging.getLogger("oapl_core.progress")
    logger.setLevel(logging.INFO)
    logger.propagate = False  # Prefect's root handlers would print each line again
    logger.addHandler(handler)
    try:
        with nullcontext() if uses_a_server() else _server(folder / "logs" / "prefect.log", cache_dir):
            yield
    finally:
        logger.removeHandler(handler)


@contextmanager
def _server(log: Path, cache_dir: Path) -> Iterator[None]:
    """A Prefect server of our own; both it and Prefect's client are loading while we wait.

    Raises:
        StageFailed: it does not come up.
    """
    home = cache_dir.resolve() / "prefect"
    for made in (home, log.parent):
        made.mkdir(parents=True, exist_ok=True)
    for key, value in settings(home).items():
        os.environ.setdefault(key, value)  # not in Prefect's profile: that is the person's
    # another process may take the port before the server does; then the server ends, and we say so
    port = _free_port()
    command = [sys.executable, "-m", "prefect", "server", "start", "--no-ui", "--no-services"]
    with (
        log.open("ab") as sink,
        guarded([*command, "--host", "127.0.0.1", "--port", str(port)], sink.fileno()) as guard,
    ):
        os.environ["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"
        try:
            import flows.experiment  # noqa: F401  seconds of imports, beside those of the server

            deadline = time.monotonic() + _START_S
            while not _is_healthy(port):
                if guard.poll() is not None or time.monotonic() > deadline:
                    raise StageFailed(
                        f"Prefect's server did not start; see {log}, or set PREFECT_API_URL to another one"
                    )
                time.sleep(0.1)
            yield
        finally:
            # or a flow after this one would be sent to a server that is gone
            del os.environ["PREFECT_API_URL"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=5.0) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
