"""Settings that depend on the model or the hub are decided once, and run.json keeps them.

A name on the hub without a commit gets today's, as a branch may mean another one tomorrow. Longest answers that nobody
set are what the model's positions leave beside the longest prompt. A run that exists keeps what it began with. Found by
name (``opening.py``) where there is a model or a name on the hub; the demo makes its model and reads files.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path

from oapl_core.errors import ConfigError
from oapl_core.model_files.hub_names import HUB, pinned, unpinned
from oapl_core.model_files.model_folder import positions_of
from oapl_core.model_files.model_hub import commit_of, config_file
from oapl_core.progress import say
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment import Experiment

_SETS = ("train", "validation", "heldout")
_ANSWERED = ("sampling", "evaluation")
"""Groups of settings that limit an answer."""


def resolved(experiment: Experiment, root: Path) -> Experiment:
    """Return the experiment with its run's commits and lengths, else today's; ``root``: the run's folder.

    Raises:
        ConfigError: the hub does not tell the commit of a data set.
    """
    # commits are those of a rehearsal's folder, too; its lengths are its own
    return _with_lengths(_with_commits(experiment, root))


def _recorded(root: Path) -> Experiment | None:
    """Read the settings that the run in a folder began with, if there is one."""
    return Run.open(root).config if (root / "run.json").exists() else None


def _with_commits(experiment: Experiment, root: Path) -> Experiment:
    named = [name for name in _named(experiment) if unpinned(name)]
    if not named:
        return experiment
    recorded = _recorded(root)
    earlier = list(_named(recorded)) if recorded else []
    found = {name: _pinned(name, earlier) for name in named}
    sets = experiment.problems
    files = {split: tuple(found.get(path, path) for path in getattr(sets, split)) for split in _SETS}
    model = experiment.model and found.get(experiment.model, experiment.model)
    return experiment.model_copy(update={"model": model, "problems": sets.model_copy(update=files)})


def _with_lengths(experiment: Experiment) -> Experiment:
    """Lower the limits of answers that nobody set to what the model can hold."""
    unset = [name for name in _ANSWERED if "max_tokens" not in getattr(experiment, name).model_fields_set]
    prompt, engine = experiment.problems.max_prompt_tokens, experiment.engine
    longest = max(getattr(experiment, name).max_tokens for name in _ANSWERED)
    if not unset or experiment.model is None or engine.max_model_len != prompt + longest:
        return experiment  # a context that somebody chose bounds them by itself
    # a folder's config.json is there at once, that of the hub is a small file to fetch
    on_hub = experiment.hub_model
    left = positions_in(config_file(on_hub) if on_hub else experiment.model / "config.json") - prompt
    if left >= longest and experiment.hub_model is None:
        return experiment
    recorded = _recorded(experiment.run_dir)  # the hub may be away today, and what a run began with is known
    limits = {
        name: getattr(recorded, name).max_tokens if recorded else int(min(getattr(experiment, name).max_tokens, left))
        for name in unset
    }
    changed = {name: limit for name, limit in limits.items() if limit != getattr(experiment, name).max_tokens}
    if not changed or min(changed.values()) < 1:
        return experiment
    groups = {name: getattr(experiment, name).model_copy(update={"max_tokens": n}) for name, n in changed.items()}
    lowered = experiment.model_copy(update=groups)
    longest = max(getattr(lowered, name).max_tokens for name in _ANSWERED)
    if not recorded:
        listed = ", ".join(f"{name}.max_tokens = {limit}" for name, limit in changed.items())
        say(f"{listed}: what the model's positions leave beside problems.max_prompt_tokens = {prompt}")
    return lowered.model_copy(update={"engine": engine.model_copy(update={"max_model_len": prompt + longest})})


def positions_in(file: Path | None) -> float:
    """Return the longest sequence of a model by its config.json; infinite where nothing says so."""
    if file is None or not file.is_file():
        return math.inf
    try:
        return positions_of(json.loads(file.read_text(encoding="utf-8")).get)
    except (ValueError, AttributeError):  # what is wrong with the folder is said when it is checked
        return math.inf


def _named(experiment: Experiment) -> Iterator[Path]:
    """Yield the model and the data sets of the hub, as settings name them."""
    if experiment.model:
        yield experiment.model
    for split in _SETS:
        yield from (path for path in getattr(experiment.problems, split) if str(path).startswith(HUB))


def _pinned(named: Path, recorded: list[Path]) -> Path:
    asked = unpinned(named)
    assert asked
    # a run continues with what it began with, and needs no network for it
    for earlier in recorded:
        commit = str(earlier).rpartition("@")[2].partition(":")[0]
        if len(commit) == 40 and str(pinned(named, commit)) == str(earlier):
            return earlier
    is_data = str(named).startswith(HUB)
    newest = commit_of(*asked, is_data=is_data)
    if newest is None:
        if not is_data:
            return named  # a folder that is missing, or offline: what is checked next says so
        raise ConfigError(
            f"`problems`: {named}: the hub does not tell its commit (no such data set, no access: set HF_TOKEN, or no "
            "network); write hub:ORG/NAME@COMMIT:SPLIT to name one"
        )
    say(f"{named} is commit {newest} today; run.json keeps it")
    return pinned(named, newest)
