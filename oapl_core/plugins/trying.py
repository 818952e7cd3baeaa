"""Whether a person's own function, environment or objective can be used: it is tried in a process of its own.

A person's module may be heavy, or end the process. Starts processes; writes nothing.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oapl_core.errors import ConfigError
from oapl_core.plugins.own_function import CODE_ROOT, IMPORT_SECONDS, search_path

_IMPORTED = 73
"""No module that ends the process ends it with this."""
_TRY = """
import importlib, json, sys
sys.path[:0] = json.loads(sys.argv[1])
module, name = sys.argv[2].split(":")
try:
    found = getattr(importlib.import_module(module), name)
except BaseException as error:
    sys.exit(f"{type(error).__name__}: {error}")
sys.exit(73 if callable(found) else "it is not a function")
"""
_TRY_ENVIRONMENT = """
import importlib.util, json, sys
sys.path[:0] = json.loads(sys.argv[1])
from oapl_core.environments.making import maker, schemas, trajectories_at_once
from oapl_core.errors import OaplError
from oapl_core.settings.environment import EnvironmentConfig
asked = json.loads(sys.argv[2])
config = EnvironmentConfig.model_validate(asked["table"])
try:
    made = maker(config)()
    if importlib.util.find_spec("transformers"):  # a machine without an engine makes no schemas
        schemas(config)
    if asked["room_for"]:
        trajectories_at_once(config, made, *asked["room_for"])
except OaplError as error:
    sys.exit(str(error))
sys.exit(73)
"""
_TRY_OBJECTIVE = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
from oapl_core.errors import OaplError
from oapl_core.objectives import OwnObjective
asked = json.loads(sys.argv[2])
try:
    OwnObjective.model_validate(asked["table"]).loaded(asked["reference"])
except OaplError as error:
    sys.exit(str(error))
sys.exit(73)
"""


def check_import(function: str, key: str, python: Path | None = None) -> None:
    """Import it once in a process of its own, by ``python`` if the stages run in another interpreter.

    Raises:
        ConfigError: it cannot be imported; one line that begins with the setting's ``key``.
    """
    if reason := _tried(_TRY, function, python):
        raise ConfigError(
            f"`{key}`: {function} cannot be imported ({reason}); modules are looked for in {Path.cwd()} first"
        )


def check_environment(
    table: Mapping[str, Any], python: Path | None = None, room_for: tuple[int, int] | None = None
) -> None:
    """Make the class of ``[environment]`` once and describe its tools, as ``check_import`` imports a function.

    ``room_for``: places of the engine and processes that sample, where they do so on this machine.

    Raises:
        ConfigError: it cannot be made, is no environment, or has a tool that a chat template cannot describe. Or its
            trajectories do not fit on this machine.
    """
    if reason := _tried(_TRY_ENVIRONMENT, json.dumps({"table": dict(table), "room_for": room_for}), python):
        raise ConfigError(reason)


def check_objective(table: Mapping[str, Any], reference: str, python: Path | None = None) -> None:
    """Load an objective of a person's own once, as ``check_import`` imports a function.

    Raises:
        ConfigError: it cannot be imported, is no objective, or has other settings.
    """
    if reason := _tried(_TRY_OBJECTIVE, json.dumps({"table": dict(table), "reference": reference}), python):
        raise ConfigError(reason)


def _tried(program: str, argument: str, python: Path | None) -> str:
    """Run ``program`` on ``argument`` in a process of its own; return its complaint, one line, or nothing."""
    command = [str(python or sys.executable), "-I", "-B", "-c", program, json.dumps(_paths(python)), argument]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=IMPORT_SECONDS, cwd=Path.cwd()
        )
    except subprocess.TimeoutExpired:
        return f"more than {IMPORT_SECONDS:.0f} s"
    if done.returncode == _IMPORTED:
        return ""
    # the last line: a module may print warnings as it is imported
    return next(reversed(done.stderr.decode("utf-8", "replace").strip().splitlines()), "its process ended")


def _paths(python: Path | None) -> list[str]:
    """For another interpreter only what is ours: it has its own packages."""
    return search_path() if python is None else [str(Path.cwd()), CODE_ROOT]
