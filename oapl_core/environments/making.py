"""From ``[environment]`` to objects: the class is imported, tried once, and made anew for each trajectory."""

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

from oapl_core import plugins
from oapl_core.environments.arguments import types_of
from oapl_core.environments.protocol import Bounded, Environment, tools_of
from oapl_core.errors import ConfigError, OaplError
from oapl_core.progress import say
from oapl_core.settings.environment import EnvironmentConfig

_PARTS = ("is_judge", "tools", "reset", "step", "close")


def maker(config: EnvironmentConfig) -> Callable[[], Environment]:
    """Return a function that makes an environment; one was made, checked and pickled to try it.

    Raises:
        ConfigError: the class cannot be imported, made with `settings`, or pickled, or it is no environment.
    """
    try:
        kind = plugins.resolve("environment", config.function)
        # before it is made: what a run's settings name may do anything when it is, and be no environment at all
        missing = [part for part in _PARTS if not hasattr(kind, part)]
        if set(missing) - {"is_judge"}:  # `is_judge` may also be set on each object
            raise _refused(config, f"is no environment: it has no {', '.join(missing)}")
        make: Callable[[], Any] = partial(kind, **config.settings)
        tried = make()
    except OaplError:
        raise
    except Exception as error:  # a person's own module can raise anything
        raise _refused(config, f"cannot be made ({type(error).__name__}: {error})") from None
    try:
        if not isinstance(tried, Environment):
            raise _refused(config, "is no environment: it has no is_judge")
        try:
            list(map(types_of, tools_of(tried)))
        except Exception as error:  # `tools` may be anything, and types may name anything
            raise _refused(config, f"has tools that cannot be called ({type(error).__name__}: {error})") from None
        try:
            pickle.loads(pickle.dumps(tried))
        except Exception as error:  # and so can pickling it
            raise _refused(config, f"cannot be pickled ({type(error).__name__}: {error})") from None
        return make
    finally:
        if hasattr(tried, "close"):
            tried.close()


def trajectories_at_once(config: EnvironmentConfig, environment: Environment, places: int, processes: int) -> int:
    """Return the number of trajectories that may be open: `in_flight`, or twice the engine's ``places``.

    Without `in_flight` only as many as fit on this machine.

    Raises:
        ConfigError: `in_flight` of them do not fit, or not a single one.
    """
    wanted = config.in_flight or 2 * places
    room = environment.fitting(processes) if isinstance(environment, Bounded) else None
    if room is None or wanted <= room.trajectories:
        return wanted
    if config.in_flight or not room.trajectories:
        raise ConfigError(
            f"environment.in_flight: {wanted:,} trajectories of {config.function} do not fit on this machine, at most "
            f"{room.trajectories:,} do ({room.why}); lower environment.in_flight or what each may take"
        )
    say(f"environment {config.function}: {room.trajectories:,} trajectories at once and not {wanted:,}: {room.why}")
    return room.trajectories


def _refused(config: EnvironmentConfig, why: str) -> ConfigError:
    given = f" with {config.settings}" if config.settings else ""
    return ConfigError(f"environment.function: {config.function}{given} {why}"[:600])


def schemas(config: EnvironmentConfig) -> list[dict[str, Any]]:
    """Return the tools in the form that a chat template takes: JSON schemas made of types and docstrings.

    Raises:
        ConfigError: as ``maker``, or a tool has no types or no docstring.
    """
    from transformers.utils import get_json_schema

    environment = maker(config)()
    try:
        return [get_json_schema(tool) for tool in tools_of(environment)]
    except Exception as error:  # the library has exceptions of its own for each thing that is missing
        raise _refused(config, f"has a tool without a schema ({type(error).__name__}: {error})") from None
    finally:
        environment.close()
