"""What the end of a stage on another machine means here, and which settings of a fleet can work."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prefect.client.schemas.objects import State, StateType

from oapl_core.errors import ConfigError, DataError, Diverged, Interrupted, SandboxError, StageFailed
from oapl_core.planning.plan import Step, helping_steps, round_steps
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import parse_experiment
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
        (StateType.COMPLETED, "Skipped", StageFailed),
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


def test_a_stage_without_a_pool_stays_here() -> None:
    settings = parse_experiment(values(fleet={"verdicts": "cpu/night"}), "test").fleet
    assert [settings.pool(step.verb) for step in round_steps(0)] == [None, "cpu/night", None, None]
    assert settings.pool("reports.write") is None


def test_a_stage_may_be_shared_by_several_machines() -> None:
    asked = {"rollouts": {"pool": "gpu/night", "shares": 3}, "evaluation": "gpu"}
    settings, verbs = parse_experiment(values(fleet=asked), "t").fleet, ("rollouts.generate", "evaluation.evaluate")
    assert [settings.pool(verb) for verb in verbs] == ["gpu/night", "gpu"]
    assert [settings.shares(verb) for verb in (*verbs, "training.train")] == [3, 1, 1]
    sampling = round_steps(0)[0]
    helpers = helping_steps(sampling, 3)
    assert [step.arguments for step in helpers] == [["--round", "0", "--share", str(n)] for n in (2, 3)]
    assert sampling.label not in {step.label for step in helpers}, "each has a log and a lock of its own"
    assert helping_steps(sampling, 1) == ()


class Server:
    """In the place of Prefect's client: flow runs are numbers, whose states a test sets."""

    def __init__(self) -> None:
        self.states: list[State] = []
        self.steps: list[str] = []
        self.cancelled: list[int] = []

    def create(self, _run: Run, step: Step, _pool: str, _queue: str | None) -> Any:
        self.states.append(State(type=StateType.RUNNING))
        self.steps.append(step.title)
        return SimpleNamespace(id=len(self.states) - 1)

    def read_flow_run(self, number: int) -> Any:
        return SimpleNamespace(state=self.states[number])

    def cancel(self, _client: Any, number: int, _tell: Any) -> None:
        self.cancelled.append(number)


def sharing(folder: Path, server: Any, tell: Callable[[str], None]) -> AbstractContextManager[Callable[..., None]]:
    """The first round's sampling on three machines."""
    config = parse_experiment(values(fleet={"rollouts": {"pool": "gpu", "shares": 3}}), "test")
    return fleet._sharing(Run(folder, config), round_steps(0)[0], "gpu", server, tell)


def test_a_share_that_dies_is_replaced_twice_and_one_that_errs_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, said = Server(), list[str]()
    monkeypatch.setattr(fleet, "_create", server.create)
    monkeypatch.setattr(fleet, "_cancel", server.cancel)
    monkeypatch.setattr(fleet, "_END_S", 0.0)
    crashed = State(type=StateType.CRASHED, name="Crashed", message="no heartbeat")
    with sharing(tmp_path, server, said.append) as look:
        assert server.steps == [f"round 0: sampling, share {n} of 3" for n in (2, 3)]
        look(0)
        assert said == []
        server.states[0] = crashed
        server.states[1] = State(type=StateType.FAILED, name="DataError", message="no prompts")
        look(0)
        look(0)
        server.states[2] = crashed
        look(0)
        server.states[3] = crashed
        look(0)
        look(0)
    lost = "round 0: sampling, share 2 of 3: round 0: sampling, share 2 of 3 on work pool gpu: no heartbeat"
    assert said == [
        f"{lost}; started again (1 of 2)",
        "round 0: sampling, share 3 of 3: no prompts; the others do its parts",
        f"{lost}; started again (2 of 2)",
        f"{lost}; the others do its parts",
    ]
    assert server.cancelled == []


def test_shares_that_still_work_end_with_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    monkeypatch.setattr(fleet, "_create", server.create)
    monkeypatch.setattr(fleet, "_cancel", server.cancel)
    monkeypatch.setattr(fleet, "_END_S", 0.0)
    with (
        pytest.raises(StageFailed),
        sharing(tmp_path, server, print) as look,
    ):
        server.states[1] = State(type=StateType.COMPLETED, name="Completed")
        look(0)
        raise StageFailed("the first one failed")
    assert server.cancelled == [0], "the other one is done"


def test_machines_without_the_disk_join_what_is_done_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, said = Server(), list[str]()
    monkeypatch.setattr(fleet, "_create", server.create)
    monkeypatch.setattr(fleet, "_cancel", server.cancel)
    monkeypatch.setattr(fleet, "get_client", lambda sync_client: nullcontext(server))
    monkeypatch.setattr(fleet, "_LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(fleet, "_END_S", 0.0)
    asked = {"rollouts": {"pool": "gpu", "shares": 3, "through": "mirror"}}
    relative = values(fleet=asked, mirror="s3://b/runs?region=x", model="m", runs_dir="runs", cache_dir="c")
    run = Run(tmp_path, parse_experiment(relative, "machines that join have paths of their own"))
    sampling, verification = round_steps(0)[:2]
    assert run.config.fleet.pool(sampling.verb) is None, "the round's own machine samples, too"
    with fleet.joined(run, verification, said.append) as tell:
        tell("judging")
    assert server.steps == []
    with fleet.joined(run, sampling, said.append) as tell:
        assert server.steps == [f"round 0: sampling, share {n} of 3" for n in (2, 3)]
        server.states[0] = State(type=StateType.CRASHED, name="Crashed", message="no heartbeat")
        tell("sampling | 1/9")
    assert said[:2] == ["judging", "sampling | 1/9"]
    assert said[2].endswith("no heartbeat; started again (1 of 2)")
    assert len(said) == 3
    assert sorted(server.cancelled) == [1, 2]


def test_a_fleet_may_change_while_a_run_goes_on(tmp_path: Path) -> None:
    Run.create(parse_experiment(values(runs_dir=str(tmp_path)), "test"))
    moved = Run.create(parse_experiment(values(runs_dir=str(tmp_path), fleet={"training": "gpu"}), "test"))
    assert Run.open(moved.root).config.fleet.training == "gpu"


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"runs_dir": "data/runs", "model": "m"}, "the same on every machine; not so: runs_dir, model"),
        ({"verifier": {"ray": {"address": "h:1"}}}, "both say where to verify"),
        ({"fleet": {"verdicts": "a/b/c"}}, "fleet.verdicts"),
    ],
)
def test_a_fleet_that_cannot_work_is_refused(more: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_experiment(values(fleet={"verdicts": "cpu"}) | more, "test")
