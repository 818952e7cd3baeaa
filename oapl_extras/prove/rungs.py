"""The rungs of `oapl prove`, each a process of its own: ``python -m oapl_extras.prove.rungs NAME FOLDER``.

A rung returns its figures; what it finds wrong it raises with the remedy. The first that samples writes the answers
that those above it score and train on.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oapl_core.errors import ConfigError, OaplError
from oapl_core.stage import ERROR_PREFIX, not_installed
from oapl_extras.prove.machine import machine, packages, sandbox
from oapl_extras.prove.sampling import engine, logprobs
from oapl_extras.prove.training import ranks, resume, sequences, step

RESULT = "result "
RUNGS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "packages": packages,
    "machine": machine,
    "sandbox": sandbox,
    "engine": engine,
    "log-probs": logprobs,
    "step": step,
    "resume": resume,
    "ranks": ranks,
    "sequences": sequences,
}


def main() -> int:
    """Climb one rung; the last line printed is its figures, or why not."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    try:
        facts = RUNGS[name](folder)
    except OaplError as error:
        sys.stdout.write(f"{ERROR_PREFIX}{error}\n")
        return error.exit_code
    except ModuleNotFoundError as error:
        sys.stdout.write(f"{ERROR_PREFIX}{not_installed(error)}\n")
        return ConfigError.exit_code
    sys.stdout.write(f"{RESULT}{json.dumps(facts)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
