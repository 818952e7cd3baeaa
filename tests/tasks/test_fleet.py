"""What the end of a flow run means here, and which settings of a fleet can work."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import ObjectNotFound

from oapl_core.errors import ConfigError, DataError, Diverged, Interrupted, SandboxError, StageFailed
from oapl_core.planning.plan import round_steps
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import parse_experiment
from oapl_core.settings.operation.fleet import Machines
from tasks import fleet
from tasks.fleet import error_of

STEP = round_steps(0)[1]
PROBLEMS = dict.fromkeys(("train", "validation", "heldout"), "problems.jsonl")


def values(**more: Any) -> dict[str, Any]:
    return {"name": "t", "model": "/m", "runs_dir": "/runs", "cache_dir": "/cache", "problems": PROBLEMS} | more


@pytest.mark.parametrize(
    ("type_", "name", "error"),
    [
        (StateType.FAILED, "DataError", DataError),
        (StateType.FAILED, "Diverged", Diverged),
        (StateType.FAILED, "SandboxError", SandboxError),
        (StateType.FAILED, "ConfigError", ConfigError),
        (StateType.FAILED, "StageFailed", StageFailed),
        (StateType.FAILED, "Failed", StageFailed),
        (StateType.CRASHED, "Crashed", StageFailed),
        (StateType.CANCELLED, "Skipped", StageFailed),
        (StateType.CANCELLED, "Cancelled", Interrupted),
    ],
)
def test_mistakes_stay_mistakes_and_a_lost_machine_is_worth_a_retry(
    type_: StateType, name: str, error: type[Exception]
) -> None:
    found = error_of(State(type=type_, name=name, message="why"), STEP, "cpu")
    assert type(found) is error
    assert name == "Cancelled" or "why" in str(found)


def test_a_completed_stage_is_no_error() -> None:
    assert error_of(State(type=StateType.COMPLETED, name="Completed"), STEP, "cpu") is None


def test_a_stage_whose_flow_run_was_deleted_fails_and_is_worth_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        """Of a server that knows no flow run."""

        def __enter__(self) -> "Client":
            return self

        def __exit__(self, *_: object) -> None:
            """Nothing to close."""

        def read_flow_run(self, number: object) -> None:
            """As Prefect's client does."""
            raise ObjectNotFound(http_exc=httpx.HTTPError("404"))

    monkeypatch.setattr(fleet, "get_client", lambda sync_client: Client())
    waiting = fleet.FlowRun(uuid4(), STEP, "gpu", lambda: None, lambda _: None)
    with pytest.raises(StageFailed, match="its flow run was deleted on Prefect's server; run the same again"):
        waiting.wait()
    waiting.cancel()


def test_a_stage_without_machines_stays_here() -> None:
    config = parse_experiment(values(fleet={"verdicts": "cpu/night"}), "test")
    machines = [config.fleet.machines(step.verb) for step in round_steps(0)]
    assert machines == [None, Machines(runner="prefect", at="cpu/night"), None, None]
    assert not config.is_elsewhere("reports.write")


def test_a_stage_may_be_shared_by_several_machines() -> None:
    config = parse_experiment(values(fleet={"rollouts": {"at": "gpu/night", "shares": 3}, "evaluation": "gpu"}), "t")
    verbs = ("rollouts.generate", "evaluation.evaluate", "training.train")
    assert [config.is_elsewhere(verb) for verb in verbs] == [True, True, False]
    assert [config.shares(verb) for verb in verbs] == [3, 1, 1]


def test_a_fleet_may_change_while_a_run_goes_on(tmp_path: Path) -> None:
    Run.create(parse_experiment(values(runs_dir=str(tmp_path)), "test"))
    moved = Run.create(parse_experiment(values(runs_dir=str(tmp_path), fleet={"training": "gpu"}), "test"))
    assert Run.open(moved.root).config.fleet.training == Machines(at="gpu")


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"runs_dir": "data/runs", "model": "m"}, "the same on every machine; not so: runs_dir, model"),
        ({"fleet": {"verdicts": "a/b/c"}}, "is not POOL or POOL/QUEUE"),
        ({"fleet": {"verdicts": {"runner": "ray"}}}, "needs `at`"),
        (
            {"fleet": {"verdicts": {"runner": "slurm", "at": "x"}}},
            "there is no runner 'slurm'; known are here, prefect",
        ),
        ({"fleet": {"training": {"at": "gpu", "shares": 2}}}, "training has no parts"),
        ({"fleet": {"verdicts": {"at": "cpu", "through": "mirror"}}}, "only rollouts are shared through the mirror"),
    ],
)
def test_a_fleet_that_cannot_work_is_refused(more: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_experiment(values(fleet={"verdicts": "cpu"}) | more, "test")
