"""What artifacts depend on: every setting of a group but those that say where, how fast or how safely."""

from pathlib import Path

import pytest

from oapl_core.settings.experiment import SamplingConfig
from oapl_core.settings.problems import ProblemsConfig
from oapl_core.settings.reward import RewardConfig
from oapl_core.settings.training import TrainingConfig
from oapl_core.settings.verifier import VerifierConfig
from oapl_core.settings_group import Settings

PROBLEMS = ProblemsConfig(train=(Path("a"),), heldout=(Path("b"),))
GROUPS: list[tuple[Settings, set[str], set[str]]] = [
    (SamplingConfig(), set(SamplingConfig().slice), {"flush_s"}),
    (PROBLEMS, set(PROBLEMS.slice), set()),
    (VerifierConfig(), set(VerifierConfig().slice), {"workers", "ray"}),
    (RewardConfig(), set(RewardConfig().slice["reward"]), {"time_limit_s", "memory_mb", "judge"}),
    (
        TrainingConfig(),
        set(TrainingConfig().slice),
        set("trackers peak_tflops save_minutes save_steps keep_checkpoints optimizer_state launcher recompute".split()),
    ),
]


@pytest.mark.parametrize(("group", "kept", "apart"), GROUPS, ids=lambda one: type(one).__name__)
def test_every_setting_counts_but_those_that_change_no_number(group: Settings, kept: set[str], apart: set[str]) -> None:
    assert kept == set(type(group).model_fields) - apart
