"""Runs a flow with no server to start: Prefect's embedded server, quiet, offline, with its own home.

If PREFECT_API_URL or a Prefect profile says where a real server is, that one is used.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from oapl_core.artifacts import Run


def settings(home: Path) -> Mapping[str, str]:
    """Prefect settings for an embedded run; whatever the environment already says wins."""
    return {
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_MEMO_STORE_PATH": str(home / "memo_store.toml"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
        "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
        "PREFECT_LOGGING_LEVEL": "CRITICAL",  # failures are reported once, by us, in one line
        "PREFECT_LOGGING_TO_API_ENABLED": "false",  # the run folder keeps the logs
        "PREFECT_LOGGING_SERVER_LEVEL": "CRITICAL",
        "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
    }


def uses_a_server() -> bool:
    """Whether the environment or a profile names a Prefect server."""
    return "PREFECT_API_URL" in os.environ or (Path.home() / ".prefect" / "profiles.toml").exists()


def run_experiment(run: Run, handler: logging.Handler) -> None:
    """Run the experiment's flow to its end; ``handler`` receives the progress lines.

    Raises:
        OaplError: the error of the stage that failed, as it raised it.
    """
    if not uses_a_server():
        home = run.config.cache_dir.resolve() / "prefect"
        home.mkdir(parents=True, exist_ok=True)
        for key, value in settings(home).items():
            os.environ.setdefault(key, value)
    from flows.experiment import oapl_experiment

    logger = logging.getLogger("oapl_core.progress")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        oapl_experiment(run.root)
    finally:
        logger.removeHandler(handler)
