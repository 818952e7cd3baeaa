"""docs/paper.md: each number of the paper stands beside what the settings hold, each difference has its reason."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oapl_core.objectives.clipped.grpo import GrpoTokenIs
from oapl_core.settings.experiment_file import load_experiment, parse_experiment, read_toml

EXPERIMENTS = Path("deployments/experiments")
GROUPS = ("sampling", "objective", "training", "evaluation", "rounds.0", "rounds.1")
OF_THE_MACHINE = {"dtype", "processes", "zero_stage", "recompute", "problems_per_part"}
OF_THE_PIPELINE = {"name", "draw", "repeat", "optimizer_state"}
"""How rounds are made out of what the paper says; the header of math.toml explains them."""


def rows() -> list[list[str]]:
    """Section, paper's number, places, key, our value, reason."""
    lines = [line for line in Path("docs/paper.md").read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[1:]]


def settings() -> dict[str, Any]:
    """By place."""
    least = {"name": "x", "model": "m", "problems": dict.fromkeys(("train", "validation", "heldout"), "x.jsonl")}
    found = {name: load_experiment(EXPERIMENTS / f"{name}.toml").model_dump(mode="json") for name in FILES}
    defaults = parse_experiment(least, "defaults").model_dump(mode="json")
    return {**found, "defaults": defaults, "grpo_token_is": GrpoTokenIs().model_dump(mode="json")}


FILES = ("deepcoder", "math")


READ: Mapping[tuple[str, str], tuple[str, Any]] = {
    ("deepcoder", "objective.value_temperature"): ("A", 1.0),
    ("deepcoder", "objective.regression_temperature"): ("A", 0.001),
    ("deepcoder", "sampling.group_size"): ("5", 8),
    ("deepcoder", "sampling.max_tokens"): ("5", 32000),
    ("deepcoder", "training.batch_size"): ("5", 256),
    ("deepcoder", "training.learning_rate"): ("script", 1e-6),
    ("deepcoder", "training.warmup_share"): ("script", 0.02),
    ("deepcoder", "training.floor_share"): ("script", 0.05),
    ("deepcoder", "training.adam_eps"): ("script", 1e-10),
    ("deepcoder", "training.adam_betas"): ("A", [0.9, 0.999]),
    ("deepcoder", "training.max_grad_norm"): ("A", 1.0),
    ("deepcoder", "rounds.0.epochs"): ("5", 1),
    ("deepcoder", "rounds.1.problems"): ("5", 4000),
    ("deepcoder", "rounds.1.epochs"): ("5", 4),
    ("math", "sampling.group_size"): ("5", 8),
    ("math", "sampling.max_tokens"): ("5", 16384),
    ("math", "training.batch_size"): ("5", 128),
    ("math", "training.adam_betas"): ("A", [0.9, 0.95]),
    ("math", "training.max_grad_norm"): ("A", 0.001),
    ("math", "rounds.0.problems"): ("5", 50),
    ("grpo_token_is", "refresh"): ("A", 2),
}
"""What a second reading of the paper and of the authors' script wrote down, by another hand than the page."""


def looked_up(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values[int(part)] if part.isdigit() else values[part]
    return values


def test_the_table_says_what_the_settings_hold() -> None:
    known = settings()
    for section, _, places, key, ours, _ in rows():
        assert re.fullmatch(r"–|script|(eq\. \d|Algorithm 1|A|\d(\.\d)?)(, (A|\d(\.\d)?))*", section), section
        for place in places.split(", "):
            assert looked_up(known[place], key) == json.loads(ours), f"{place}: {key}"


def test_the_page_gives_what_a_second_reading_of_the_paper_found() -> None:
    page = {
        (place, key): (re.split(r", ", section), paper)
        for section, paper, places, key, _, _ in rows()
        for place in places.split(", ")
    }
    for at, (section, value) in READ.items():
        sections, paper = page[at]
        assert section in sections, at
        assert json.loads(paper) == value, at


def test_each_difference_has_a_reason_and_nothing_else_has() -> None:
    for section, paper, _, key, ours, reason in rows():
        is_given = paper != "not given"
        differs = not is_given or json.loads(paper) != json.loads(ours)
        assert differs == bool(reason), f"{key}: {paper}, {ours}, {reason!r}"
        assert is_given <= (section != "–"), f"{key}: no number of the paper without its section"


def test_what_the_papers_experiments_set_of_the_algorithm_is_in_the_table() -> None:
    named = {(place, key) for _, _, places, key, _, _ in rows() for place in places.split(", ")}
    assert len(named) == sum(len(places.split(", ")) for _, _, places, *_ in rows()), "a number stands there twice"
    for name in FILES:
        values = read_toml(EXPERIMENTS / f"{name}.toml")
        rounds = {str(number): one for number, one in enumerate(values["rounds"])}
        values = {**values, **{f"rounds.{number}": one for number, one in rounds.items()}}
        for group in GROUPS:
            given: Mapping[str, Any] = values.get(group, {})
            keys = set(given) - OF_THE_MACHINE - OF_THE_PIPELINE
            assert {(name, f"{group}.{key}") for key in keys} <= named
