"""What artifacts depend on: every setting of a group but those that change no number, which each group names itself."""

import importlib
from pathlib import Path

import pytest

from oapl_core.settings.experiment import EngineConfig, Experiment
from oapl_core.settings.judge import JudgeConfig
from oapl_core.settings.problems import ProblemsConfig, PromptTemplate
from oapl_core.settings.reward import RewardConfig
from oapl_core.settings.sampling import SamplingConfig
from oapl_core.settings.training import TrainingConfig
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.settings_group import Settings
from tests.architecture.sources import python_files

PROBLEMS = ProblemsConfig(train=(Path("a"),), heldout=(Path("b"),))
GROUPS: list[tuple[Settings, set[str]]] = [
    (SamplingConfig(), set(SamplingConfig().slice)),
    (PROBLEMS, set(PROBLEMS.slice)),
    (VerifierConfig(), set(VerifierConfig().slice)),
    (RewardConfig(), {*RewardConfig().slice["reward"], "judge"}),
    (TrainingConfig(), set(TrainingConfig().slice)),
    (EngineConfig(), {name.removeprefix("engine_") for name in EngineConfig().slice}),
]


def every_group(group: type[Settings] = Settings) -> set[type[Settings]]:
    return {group}.union(*(every_group(inner) for inner in group.__subclasses__()))


@pytest.mark.parametrize(("group", "kept"), GROUPS, ids=lambda one: type(one).__name__)
def test_every_setting_counts_but_those_that_change_no_number(group: Settings, kept: set[str]) -> None:
    assert kept == set(type(group).model_fields) - type(group).changes_nothing


def test_what_changes_nothing_is_a_field_of_its_group() -> None:
    for path in python_files("oapl_core"):
        if path.parts[1] == "settings":
            importlib.import_module(".".join(path.with_suffix("").parts))
    wrong = {group: group.changes_nothing - set(group.model_fields) for group in every_group()}
    assert not {group: names for group, names in wrong.items() if names}


def test_a_group_within_a_group_leaves_out_its_own() -> None:
    template = PromptTemplate(file=Path("a.jinja"), text="{{ response }}")
    judge = JudgeConfig(url="http://localhost/v1", model="m", prompt=template, canaries=Path("c"))
    reward = RewardConfig(judge=judge)
    assert reward.slice["reward"]["judge"]["prompt"] == {"text": "{{ response }}"}
    assert "url" not in reward.slice["reward"]["judge"]


def test_what_may_change_while_a_run_is_unfinished_changes_no_number() -> None:
    for group in every_group():
        assert group.changes_nothing >= group.may_change, group
    # run.lasting knows these two
    assert {group for group in every_group() if group.may_change} == {Experiment, TrainingConfig}
