"""Turns a person's words for checkpoints, a problem set and settings into the settings of an evaluation folder.

Reads runs' ledgers and looks whether files are there; writes nothing. The command line and the flow ask the same way.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from oapl_core.errors import ConfigError, DataError
from oapl_core.evaluation.folders.folder import parse
from oapl_core.evaluation.measures import ON
from oapl_core.model_files.hub_names import hub_model
from oapl_core.model_files.model_hub import fetched, refuse_unpinned
from oapl_core.plugins.trying import check_import
from oapl_core.problems.published import published_sets
from oapl_core.progress import say
from oapl_core.run_folder.resolving import positions_in
from oapl_core.run_folder.run import Run
from oapl_core.settings.evaluation_folder import EvaluationFolderConfig, SetConfig
from oapl_core.settings.experiment_file import apply
from oapl_core.shipped import with_shipped_files

_FOLDER = Path("data/evaluations")
_PLACE = re.compile(r"round_(\d+)(?:/epoch_(\d+))?")


def settings_of(
    models: Sequence[str],
    problems: Mapping[str, Any],
    overrides: Sequence[str] = (),
    tell: Callable[[str], None] = say,
) -> EvaluationFolderConfig:
    """Return the settings of an evaluation.

    Args:
        models: as ``model_of`` reads them.
        problems: fields of SetConfig.
        overrides: ``key.sub=value``, fields of EvaluationFolderConfig. Without `engine.max_model_len` the
            engine takes what prompt and answer need. Without `max_tokens` an answer takes what the models hold.
        tell: is told of a limit that was lowered so.

    Raises:
        ConfigError: one line that says what is wrong; no folder was made.
    """
    values: dict[str, Any] = {"problems": with_shipped_files(dict(problems))}
    for override in overrides:
        apply(values, override)
    # names are looked up before a model is downloaded
    if values["problems"].get("name") is not None:
        known = {key: values["problems"].get(key) for key in ("name", "release", "window")}
        published_sets().check(SetConfig(**known))
    values["models"] = [model_of(word) for word in models]
    prompt, answer = (values.get(key, _default(key)) for key in ("max_prompt_tokens", "max_tokens"))
    if isinstance(prompt, int) and isinstance(answer, int):
        # a context that somebody chose bounds answers by itself; without models the settings say what is missing
        is_open = "max_tokens" not in values and "max_model_len" not in values.get("engine", {}) and values["models"]
        if is_open and (left := _left(values["models"], prompt)) < answer:
            values["max_tokens"] = answer = int(left)
            tell(f"max_tokens = {answer}: what the models' positions leave beside max_prompt_tokens = {prompt}")
        # no more context than is asked for: its size decides how many answers fit at once
        values["engine"] = {"max_model_len": prompt + answer, **values.get("engine", {})}
    return checked(values, "the evaluation")


def _default(key: str) -> Any:
    return EvaluationFolderConfig.model_fields[key].default


def _left(models: Sequence[Mapping[str, Any]], prompt: int) -> float:
    """Return the longest answer that every model can hold beside the longest prompt.

    Raises:
        ConfigError: a model holds no more than the prompt.
    """
    positions, label = min((positions_in(Path(one["path"], "config.json")), one["label"]) for one in models)
    if positions <= prompt:
        raise ConfigError(
            f"max_prompt_tokens = {prompt} leaves no position for an answer: {label} has {positions:.0f}; give fewer, "
            f"for example max_prompt_tokens={positions // 2:.0f}"
        )
    return positions - prompt


def checked(values: Mapping[str, Any], where: str) -> EvaluationFolderConfig:
    """Validate settings; ``where`` names their origin.

    Raises:
        ConfigError: they cannot be used, or the problem set is not there.
    """
    config = parse(values, where)
    if config.problems.path is not None and not config.problems.path.exists():
        raise ConfigError(f"{config.problems.path}: no such problem set")
    if config.reward and config.reward.place:
        check_import(config.reward.place, "reward.function", config.engine_python)
    return config


def model_of(word: str) -> dict[str, Any]:
    """Read ``[LABEL=]MODEL`` as fields of ModelConfig; a model on the hub is fetched.

    Raises:
        ConfigError: it is neither a model folder, nor one on the hub at a commit, nor a checkpoint of a run.
    """
    label, equals, place = word.partition("=")
    # a folder may have an equals sign in its name
    if not equals or Path(word).is_dir():
        label, place = "", word
    if Path(place, "config.json").is_file():
        return {"label": label or Path(place).name, "path": place}
    if not Path("data/runs", place).is_dir():
        refuse_unpinned(place)
    if on_hub := hub_model(place):
        label = label or on_hub.name.rpartition("/")[2]
        return {"label": label, "path": fetched(on_hub, print), "origin": f"{on_hub} on the hub"}
    name, colon, part = place.rpartition(":")
    run = _run(name if colon else place)
    found = _of_run(run, part if colon else "")
    return {**found, "label": label or found["label"]}


def _run(name: str) -> Run:
    try:
        return Run.named(name)
    except DataError as error:
        raise ConfigError(f"{name}: is neither a model folder (no config.json) nor a run: {error}") from None


def _of_run(run: Run, place: str) -> dict[str, Any]:
    if not place:
        return _newest(run)
    if place == "base":
        return {"label": f"{run.root.name} base", "path": run.base_model(), "origin": "base model of the run"}
    match = _PLACE.fullmatch(place)
    if match is None or int(match[1]) >= len(run.config.rounds):
        raise ConfigError(f"{run.root}:{place}: write base, round_00 or round_00/epoch_01 after the colon")
    number = int(match[1])
    epoch = int(match[2] or run.config.rounds[number].epochs)
    label = f"{run.root.name} round {number} epoch {epoch}"
    return {"label": label, "path": run.checkpoint(number, epoch), "origin": "named by the person who evaluated"}


def _newest(run: Run) -> dict[str, Any]:
    """Return the epoch that the run's evaluation chose; before it is evaluated, the newest there is."""
    artifacts = run.ledger.artifacts()
    entry = artifacts.get(run.name(run.evaluation()))
    if entry and entry.details.get("chosen_epoch"):
        number = entry.details.get("chosen_round", len(run.config.rounds) - 1)
        path = run.checkpoint(number, entry.details["chosen_epoch"])
        origin = ON[entry.details.get("chosen_on", "validation")]
        return {"label": f"{run.root.name} {entry.details['chosen']}", "path": path, "origin": origin}
    for number in reversed(range(len(run.config.rounds))):
        for epoch in range(run.config.rounds[number].epochs, 0, -1):
            if run.name(run.checkpoint(number, epoch)) in artifacts:
                label = f"{run.root.name} round {number} epoch {epoch}"
                return {"label": label, "path": run.checkpoint(number, epoch), "origin": ON["last"]}
    raise ConfigError(f"{run.root}: has no checkpoint yet; {run.root}:base is its base model")


def default_folder(config: EvaluationFolderConfig) -> Path:
    """Return the folder of an evaluation if nobody says one: it is named as the set and the models."""
    path = Path(str(config.problems.path))
    of_run = path.name == "problems.parquet" and path.parent.name
    problems = config.problems.name or of_run or path.name.partition(".")[0]
    more = f"-and-{len(config.models) - 1}-more" if len(config.models) > 1 else ""
    return _FOLDER / re.sub(r"[^A-Za-z0-9._-]+", "-", f"{problems}-{config.models[0].label}{more}")
