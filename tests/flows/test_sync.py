"""Rounds that older checkpoints sample, under the flow: none is sampled before its checkpoint is trained."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from oapl_core.planning.plan import finished, steps
from oapl_core.run_folder.run import Run
from tests.played_run import left_behind, played_experiment, stages_started

pytestmark = pytest.mark.slow

ASKING = """
if verb == "rollouts.generate":
    trained = {e.stage for e in run.ledger.stages() if e.exit_code == 0}
    before = run.config.sampling_round(number) - 1
    assert before < 0 or f"training.train round {before}" in trained, "its policy is not there yet"
    with open(run.root / "sampled_by", "a") as file:
        file.write(f"{number} {before + 1}\\n")
"""


@pytest.fixture(scope="module", autouse=True)
def prefect() -> Iterator[None]:
    from prefect.testing.utilities import prefect_test_harness  # imports a whole server

    with prefect_test_harness(server_startup_timeout=180):
        yield


@pytest.mark.parametrize(
    ("overrides", "sampled_by"),
    [
        (("sync.offset_rounds=2",), [0, 0, 0, 1]),
        (("sync.every_rounds=2",), [0, 0, 2, 2]),
        (("pipeline={}", "sync.offset_rounds=2"), [0, 0, 0, 1]),
        (("pipeline={}", "sync.every_rounds=3"), [0, 0, 0, 2]),
    ],
    ids=str,
)
def test_every_round_is_sampled_once_by_the_checkpoint_that_its_settings_name(
    tmp_path: Path, overrides: tuple[str, ...], sampled_by: list[int]
) -> None:
    from flows.experiment import oapl_experiment

    experiment = played_experiment(tmp_path, rounds=4)
    player = (tmp_path / "player.py").read_text()
    (tmp_path / "player.py").write_text(player.replace("stubborn =", ASKING + "stubborn =", 1))
    oapl_experiment(experiment, overrides)
    run = Run.open(tmp_path / "played-seed0")
    assert len(finished(run)) == len(steps(run.config))
    assert sorted(stages_started(run.root)) == sorted(step.label for step in steps(run.config))
    noted = dict(line.split() for line in (run.root / "sampled_by").read_text().splitlines())
    assert [int(noted[str(number)]) for number in range(4)] == sampled_by
    assert left_behind(run.root) == []
