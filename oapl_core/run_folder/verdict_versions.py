"""Versions of a round's verdicts: those of its own settings, and others beside them, made by `oapl verify --as NAME`.

round_00/2_verdicts/            by the run's settings.
round_00/2_verdicts.NAME/       by others, which its settings.json holds: `verifier` and `reward`.
round_00/2_verdicts.json        which of them is used: {"version": "NAME"}; not there: the first.

``Run.verdicts`` and ``Run.judged_by`` find this by name (``plugins``, kind "verdicts") where there is another version.
"""

import json
import re
from pathlib import Path
from typing import Any

from oapl_core.errors import ConfigError, DataError
from oapl_core.run_folder.run import VERDICTS_CHOICE, VERDICTS_DIR, Run
from oapl_core.settings.experiment import Experiment
from oapl_core.settings.experiment_file import parse_experiment

SETTINGS_FILE = "settings.json"
STORED = "stored"
"""Name of the verdicts by the run's own settings, for a person."""


def folder(round_dir: Path, version: str | None) -> Path:
    """Return the folder of a version: "" is the one by the run's settings, None the one that is used."""
    version = used(round_dir) if version is None else version
    return round_dir / (f"{VERDICTS_DIR}.{version}" if version else VERDICTS_DIR)


def choice(round_dir: Path) -> Path:
    """Return the file that says which version is used."""
    return round_dir / VERDICTS_CHOICE


def used(round_dir: Path) -> str:
    """Name of the version that groups, training and pages use; "" for the run's own.

    Raises:
        DataError: the file that says so is broken.
    """
    path = choice(round_dir)
    if not path.exists():
        return ""
    name = _read(path).get("version")
    try:
        return check_name(str(name)) if name else ""
    except ConfigError as error:  # a fetched folder's may say anything, and it becomes part of a path
        raise DataError(f"{path}: {error}; delete it, and `oapl verify --use` again") from None


def judged_by(run: Run, number: int, version: str | None = None) -> Experiment:
    """Return the round's settings with the `verifier` and `reward` by which a version of its verdicts was judged.

    Raises:
        DataError: there is no such version.
    """
    place = run.round_dir(number)
    if not (used(place) if version is None else version):
        return run.config.of_round(number)
    path = folder(place, version) / SETTINGS_FILE
    # a version has both groups whole, so nothing of the run's own, or of its round's, can mix in
    return parse_experiment(without_rewards(run.config) | _read(path), str(path)).of_round(number)


def without_rewards(config: Experiment) -> dict[str, Any]:
    """Return the settings as JSON has them; no round has a reward of its own."""
    values = config.model_dump(mode="json")
    return values | {"rounds": [one | {"reward": {}} for one in values["rounds"]]}


def check_name(name: str) -> str:
    """Refuse what cannot name a version.

    Raises:
        ConfigError: one line.
    """
    if name == STORED or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ConfigError(f"{name!r} cannot name a version: letters, digits, - and _, and not {STORED!r}")
    return name


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        raise DataError(f"{path}: is missing; `oapl verify --rollouts` with --as makes such a version") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: is not readable ({error}); delete it, and `oapl verify --use` again") from None
