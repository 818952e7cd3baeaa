"""From ``[environment]`` to objects: the class is imported, tried once, and made anew for each trajectory."""

import importlib
import pickle
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from oapl_core.environments.protocol import Environment
from oapl_core.errors import ConfigError, OaplError
from oapl_core.own_function import search_path
from oapl_core.settings.environment import EnvironmentConfig


def maker(config: EnvironmentConfig) -> Callable[[], Environment]:
    """What makes an environment; one was made, looked at and pickled to try it.

    Raises:
        ConfigError: the class cannot be imported, made with `settings`, or pickled, or it is no environment.
    """
    module, _, name = config.target.partition(":")
    for path in reversed([path for path in search_path() if path not in sys.path]):
        sys.path.insert(0, path)
    try:
        make: Callable[[], Any] = partial(getattr(importlib.import_module(module), name), **config.settings)
        tried = make()
    except OaplError:
        raise
    except Exception as error:  # a person's own module can raise anything
        raise _refused(config, f"cannot be made ({type(error).__name__}: {error})") from None
    try:
        if not isinstance(tried, Environment):
            parts = ("is_judge", "tools", "reset", "step", "close")
            missing = ", ".join(part for part in parts if not hasattr(tried, part))
            raise _refused(config, f"is no environment: it has no {missing}")
        try:
            pickle.loads(pickle.dumps(tried))
        except Exception as error:  # and so can pickling it
            raise _refused(config, f"cannot be pickled ({type(error).__name__}: {error})") from None
        return make
    finally:
        if hasattr(tried, "close"):
            tried.close()


def _refused(config: EnvironmentConfig, why: str) -> ConfigError:
    given = f" with {config.settings}" if config.settings else ""
    return ConfigError(f"environment.function: {config.function}{given} {why}"[:600])


def schemas(config: EnvironmentConfig) -> list[dict[str, Any]]:
    """The tools as a chat template takes them: JSON schemas made of types and docstrings.

    Raises:
        ConfigError: as ``maker``, or a tool has no types or no docstring.
    """
    from transformers.utils import get_json_schema

    environment = maker(config)()
    try:
        return [get_json_schema(tool) for tool in environment.tools()]
    except Exception as error:  # the library has exceptions of its own for each thing that is missing
        raise _refused(config, f"has a tool without a schema ({type(error).__name__}: {error})") from None
    finally:
        environment.close()
