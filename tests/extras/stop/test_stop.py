"""`[stop]`: each rule fires at its limit and not before, ends a step in hand, and lets the run continue when raised."""

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oapl_core.errors import ConfigError, Stopped
from oapl_core.planning.plan import finished, steps
from oapl_core.run_folder.ledger import StageEntry
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import parse_experiment
from oapl_core.settings.operation.stop import StopConfig
from oapl_extras.interim.stage import results
from oapl_extras.stop.costs import costs
from oapl_extras.stop.rules import reasons, refuse_idle, without_gain
from oapl_extras.stop.stopping import Stopping, stopping
from tests.flows.test_experiment import calls
from tests.flows.test_until import make_run, play

GIVEN: dict[str, Any] = {"name": "s", "model": "m", "problems": {"train": "a", "validation": "b", "heldout": "c"}}


def a_run(folder: Path, **stop: Any) -> Run:
    rounds = {"rounds": [{}] * 5, "evaluation": {"every_rounds": 1}}
    return Run.create(parse_experiment({**GIVEN, **rounds, "runs_dir": str(folder), "stop": stop}, "test"))


def spend(run: Run, hours: float, gpus: int = 8, label: str = "rollouts.generate round 0") -> None:
    run.ledger.append(StageEntry(label, 3600 * hours, 0, gpus=gpus))


def judged(run: Run, number: int, **details: Any) -> None:
    with run.writing(results(run, number), {}, {}) as draft:
        draft.path.write_text("x" * 1000)
        draft.rows, draft.details = 1, details


def deciding(number: int, reward: float) -> dict[str, Any]:
    measured = {f"round {number}": {"mean_reward": reward}}
    return {"validation": measured, "deciding": {"split": "validation", "mean_reward": reward}}


def fired(run: Run) -> list[str]:
    return list(reasons(run, costs(run)))


def test_costs_count_every_process_and_its_gpus(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    spend(run, 0.5)
    spend(run, 0.25)
    spend(run, 2, gpus=4, label="training.train round 0")
    spend(run, 1, gpus=0, label="groups.build round 0")
    judged(run, 0, judge={"calls": 3, "prompt_tokens": 100, "completion_tokens": 20})
    judged(run, 1, judge={"calls": 4, "prompt_tokens": 10, "completion_tokens": 2})
    cost = costs(run)
    assert cost.gpu_s == {"rollouts": 6 * 3600, "training": 8 * 3600}
    assert (cost.gpu_hours, cost.wall_s) == (14, 3.75 * 3600)
    assert (cost.judge_calls, cost.judge_tokens) == (7, 132)
    assert cost.bytes >= 2000
    for part in ("3.75 hours", "14.00 GPU-hours (rollouts 6.00, training 8.00)", "7 calls", "132 tokens"):
        assert part in cost.line


@pytest.mark.parametrize(
    ("rule", "limit", "raised"),
    [("gpu_hours", 12.0, 12.1), ("wall_hours", 1.5, 1.6), ("judge_calls", 7, 8), ("judge_tokens", 132, 133)],
)
def test_a_limit_that_is_reached_ends_the_run_and_a_higher_one_does_not(
    tmp_path: Path, rule: str, limit: float, raised: float
) -> None:
    for folder, given in (("at", limit), ("above", raised)):
        run = a_run(tmp_path / folder, **{rule: given})
        spend(run, 1.5)
        judged(run, 0, judge={"calls": 7, "prompt_tokens": 100, "completion_tokens": 32})
        assert [f"stop.{rule}" in line for line in fired(run)] == ([True] if folder == "at" else [])


def test_the_disk_is_a_budget_too(tmp_path: Path) -> None:
    run = a_run(tmp_path, disk_gb=0.002)
    assert not fired(run)
    (run.root / "logs").mkdir(exist_ok=True)
    (run.root / "logs" / "long").write_bytes(bytes(2_000_000))
    assert "stop.disk_gb = 0.002" in fired(run)[0]


def test_evaluations_without_gain_are_those_since_the_first_best() -> None:
    rising, falling, equal = [0.2, 0.3], [0.1, 0.3, 0.2], [0.3, 0.3, 0.1]
    assert [without_gain(rewards) for rewards in ([], [0.2], rising, falling, equal)] == [0, 0, 0, 1, 2]


def test_a_run_without_gain_ends(tmp_path: Path) -> None:
    run = a_run(tmp_path, without_gain=2)
    for number, reward in enumerate((0.2, 0.4, 0.4)):
        judged(run, number, **deciding(number, reward))
    assert not fired(run)
    judged(run, 3, **deciding(3, 0.3))
    assert fired(run) == ["2 evaluations brought no gain (stop.without_gain = 2)"]


def test_only_the_alarms_that_are_named_end_the_run(tmp_path: Path) -> None:
    for name, ends in (("truncated", True), ("mismatch", False)):
        run = a_run(tmp_path / name, alarms=[name])
        with run.writing(run.rollouts(0) / "part-00000.parquet", {}, {}) as draft:
            draft.path.write_text("")
            draft.rows, draft.details = 100, {"response_tokens": 1000, "truncated": 80}
        with run.writing(run.groups(0), {}, {}) as draft:
            draft.path.write_text("")
            draft.details = {"rollouts": 100, "correct_rollouts": 10, "dropped": {}}
        assert [line.startswith("the alarm truncated of stop.alarms: round 0: 80.0%") for line in fired(run)] == [
            *([True] if ends else [])
        ]


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        ({"judge_calls": 5}, "stop.judge_calls can never end this run: no [reward.judge]"),
        ({"judge_tokens": 5}, "stop.judge_tokens can never end this run: no [reward.judge]"),
        ({"without_gain": 4}, "stop.without_gain = 4 can never end this run: it has 4 evaluations before its end"),
        ({"gpu_hours": 5.0}, "stop.gpu_hours can never end this run: this machine has no GPU"),
    ],
)
def test_a_rule_that_can_never_fire_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: dict[str, Any], words: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError) as caught:
        refuse_idle(a_run(tmp_path, **stop))
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("stop", [{"alarms": ["truncate"]}, {"gpu_hours": 0}, {"without_gain": -1}, {"hours": 3}])
def test_a_rule_that_is_none_is_refused(tmp_path: Path, stop: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="stop"):
        a_run(tmp_path, **stop)


def test_a_step_in_hand_is_ended_by_a_line_of_its_progress(tmp_path: Path) -> None:
    run, heard = a_run(tmp_path, wall_hours=1.0), list[str]()
    step = steps(run.config)[-2]
    spend(run, 0.999)
    with Stopping(run, heard.append, look_every_s=0.0).around(step, heard.append) as watched:
        watched("a line")
        spend(run, 0.001)
        with pytest.raises(Stopped, match=r"as 1 of stop.wall_hours = 1 are used; raise the limit first"):
            watched("another")
    assert heard == ["a line", "another"], "the line is heard before the rule is"
    with pytest.raises(Stopped), Stopping(run, heard.append).around(step, heard.append):
        raise AssertionError("the next step does not begin")
    with Stopping(run, heard.append, look_every_s=0.0).around(steps(run.config)[-1], heard.append) as watched:
        watched("the report is written all the same")


def test_a_run_without_rules_has_nobody_who_looks(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    assert stopping(run, print) is None
    assert stopping(replace(run, config=a_run(tmp_path / "b", disk_gb=1.0).config), print)


@pytest.mark.usefixtures("prefect")
def test_a_run_that_stops_is_finished_for_prefect_and_continues_with_a_higher_limit(tmp_path: Path) -> None:
    run = make_run(tmp_path, 2, stop={"disk_gb": 1e-9})
    state = played(run)
    assert (state.name, state.is_completed()) == ("Stopped", True)
    assert "stopped as" in str(state.message) and "stop.disk_gb = 1e-09" in str(state.message)
    assert not (run.root / "calls").exists() and not finished(run)
    stop = run.ledger.stop()
    assert stop and "raise the limit first" in stop.reason
    values = run.config.model_dump(mode="json") | {"stop": {"disk_gb": 100.0}}
    raised = Run.create(parse_experiment(values, "test"))
    assert "the report is" in play(raised)
    assert calls(run) == [step.label for step in steps(run.config)]
    assert raised.ledger.stop() is None


def test_the_page_names_every_rule_with_its_kind() -> None:
    page = Path("docs/extras/stop.md").read_text()
    table = tomllib.loads(page.partition("```toml")[2].partition("```")[0])
    assert set(table["stop"]) == set(StopConfig.model_fields)
    assert StopConfig.model_validate(table["stop"]).is_on and not StopConfig().is_on


def played(run: Run) -> Any:
    from flows.experiment import oapl_experiment

    return oapl_experiment(run.root, return_state=True)
