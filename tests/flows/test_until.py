"""`until`: a run stops after a stage as asked, says so, does no more when asked again, and continues exactly there."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from oapl_core.changing.stopping import until
from oapl_core.errors import ConfigError
from oapl_core.planning.plan import finished, steps, stopped_before, wanted
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import parse_experiment
from tests.flows.test_experiment import PLAYER, calls, played
from tests.whole_run import called

pytestmark = pytest.mark.usefixtures("prefect")


def make_run(folder: Path, rounds: int = 1, **changes: Any) -> Run:
    """A run whose stages are played by a script."""
    (folder / "player.py").write_text(PLAYER)
    interpreter = folder / "python"
    interpreter.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{folder}/player.py" "$@"\n')
    interpreter.chmod(0o755)
    values = {
        "name": "t",
        "model": "m",
        "runs_dir": str(folder),
        "engine_python": str(interpreter),
        "rounds": [{}] * rounds,
        "problems": {"train": "a", "validation": "b", "heldout": "c"},
        **changes,
    }
    return played(Run.create(parse_experiment(values, "test")))


def play(run: Run, **parameters: Any) -> str:
    from flows.experiment import oapl_experiment

    return str(oapl_experiment(run.root, **parameters, return_state=True).message)


def labels(run: Run) -> list[str]:
    return [step.label for step in steps(run.config)]


@pytest.mark.slow
def test_it_stops_before_training_and_continues_exactly_there(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    said = play(run, until="groups")
    assert "stopped before round 0: training, as asked" in said
    assert calls(run) == labels(run)[:4]
    assert "stopped before round 0: training, as asked" in called("status", run.root).stdout
    assert json.loads(called("--json", "status", run.root).stdout)["stopped"] == "before round 0: training, as asked"
    assert play(run, until="groups") == said, "the same words want nothing more"
    assert calls(run) == labels(run)[:4]
    assert len([line for line in run.ledger.path.read_text().splitlines() if '"kind": "stop"' in line]) == 1
    assert "the report is" in play(run)
    assert calls(run) == labels(run)
    assert len(finished(run)) == len(steps(run.config)) and run.ledger.stop() is None
    assert "stopped" not in called("status", run.root).stdout
    assert "the report is" in play(run, until="groups"), "what is finished is not stopped"


@pytest.mark.slow
def test_of_several_rounds_the_next_unfinished_one_is_meant_unless_one_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path, 3)
    play(run, until="training")
    assert calls(run)[-1] == "training.train round 0"
    play(run, until="groups")
    assert calls(run)[-1] == "groups.build round 1"
    play(run, until="sampling", until_round=2)
    assert calls(run)[-2:] == ["training.train round 1", "rollouts.generate round 2"]
    assert (run.root / "beside").read_text().splitlines() == [f"verdicts.verify round {n}" for n in range(2)], (
        "nobody asked for the verdicts of round 2"
    )
    play(run)
    assert calls(run) == labels(run)


def test_with_a_pipeline_the_next_round_is_not_sampled_ahead(tmp_path: Path) -> None:
    run = make_run(tmp_path, 2, pipeline={}, training={"reference": "behavior"})
    play(run, until="training")
    assert calls(run)[-1] == "training.train round 0"
    assert not [label for label in calls(run) if label.endswith("round 1")]


def test_rounds_of_the_nightly_flow_stop_there_too(tmp_path: Path) -> None:
    from flows.round import oapl_round

    run = make_run(tmp_path, 2)
    state = oapl_round(run.root, until="verification", return_state=True)
    assert "stopped before round 0: groups, as asked" in str(state.message)
    assert "round 0 is finished" in str(oapl_round(run.root, return_state=True).message)
    assert calls(run) == labels(run)[:5]


def test_what_is_wanted_as_far_as_a_stage_outside_of_rounds(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert [step.word for step in wanted(until(run, "problems-and-prompts"))] == ["problems-and-prompts"]
    assert [step.word for step in wanted(until(run, "evaluation"))][-1] == "evaluation"
    assert wanted(run) == wanted(until(run, "report")) == steps(run.config)
    last = stopped_before(until(run, "groups"))
    assert last is None, "nothing is finished, so it has not stopped"


@pytest.mark.parametrize(
    ("stage", "number", "complaint"),
    [
        (
            "group",
            None,
            "'group' is not a stage; they are problems-and-prompts, sampling, verification, groups, training",
        ),
        ("groups", 4, r"round 4: the experiment has rounds 0..0"),
        ("report", 0, "report belongs to no round; leave --round out"),
        (None, 1, "until_round: says which round `until` means; give that, too"),
    ],
)
def test_a_stage_that_is_none_is_refused_before_anything_runs(
    tmp_path: Path, stage: str | None, number: int | None, complaint: str
) -> None:
    run = make_run(tmp_path)
    from flows.experiment import oapl_experiment

    with pytest.raises(ConfigError, match=complaint):
        oapl_experiment(run.root, until=stage, until_round=number)
    assert not (run.root / "calls").exists()


def test_the_command_line_refuses_it_in_one_line(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    done = called("run", run.root, "--until", "group")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "'group' is not a stage" in done.stderr
    done = called("run", run.root, "--round", "0")
    assert (done.returncode, "says which round --redo, --from-stage or --until means" in done.stderr) == (2, True)


def test_the_command_stops_where_it_is_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.settings import PREFECT_API_URL

    monkeypatch.setenv("PREFECT_API_URL", str(PREFECT_API_URL.value()))  # or it starts a server of its own
    run = make_run(tmp_path)
    done = called("run", run.root, "--until", "problems-and-prompts")
    assert done.returncode == 0, done.stderr
    assert f"stopped before round 0: sampling, as asked; `oapl run {run.root}` continues there" in done.stdout
    assert calls(run) == labels(run)[:1]


@pytest.mark.slow
def test_the_command_stops_and_continues(tmp_path: Path) -> None:
    run = make_run(tmp_path, 2)
    done = called("run", run.root, "--until", "groups")
    assert done.returncode == 0, done.stderr
    assert f"stopped before round 0: training, as asked; `oapl run {run.root}` continues there" in done.stdout
    assert "step 4/4" in done.stdout, "steps that are wanted"
    again = called("run", run.root, "--until", "groups")
    assert (again.returncode, "every step as far as round 0: groups is finished" in again.stdout) == (0, True)
    assert calls(run) == labels(run)[:4]
    again = called("run", run.root, "--until", "verification", "--round", "1")
    assert again.returncode == 0, again.stderr
    assert calls(run) == labels(run)[:7]
    redone = called("run", run.root, "--redo", "groups", "--until", "groups", "--round", "0")
    assert redone.returncode == 0, redone.stderr
    assert calls(run) == [*labels(run)[:7], "groups.build round 0"]


@pytest.mark.slow
def test_after_an_evaluation_the_report_is_written_at_once_and_a_broken_one_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run(tmp_path, rounds=2, evaluation={"every_rounds": 1})
    (run.root / "fail").write_text("reports.write=once")
    assert "the report is" in play(run)
    made = calls(run)
    measured = made.index("evaluation.interim round 0")
    assert made[measured + 1 : measured + 3] == ["reports.write", "rollouts.generate round 1"]
    assert [one for one in made if one != "reports.write"] == labels(run)[:-1] and made.count("reports.write") == 2
    assert "report: " in caplog.text and "the run continues" in caplog.text
    assert len(finished(run)) == len(labels(run))
    play(run)
    assert calls(run) == made, "nothing is left"


@pytest.mark.slow
def test_a_report_that_a_kill_or_a_failure_left_out_is_written_by_the_next_start_once(tmp_path: Path) -> None:
    run = make_run(tmp_path, 3, evaluation={"every_rounds": 1})
    (run.root / "fail").write_text("reports.write=data")
    play(run, until="interim-evaluation", until_round=1)
    assert calls(run)[-2:] == ["evaluation.interim round 1", "reports.write"] and not run.report.exists()
    before = len(calls(run))
    play(run, until="interim-evaluation", until_round=1)
    assert calls(run)[before:] == ["reports.write"], "of the newest numbers alone, whatever earlier rounds lack"
    (run.root / "fail").unlink()
    play(run, until="sampling", until_round=2)
    assert calls(run)[before + 1 :] == ["reports.write", "rollouts.generate round 2"], "also after the next step began"
    play(run, until="sampling", until_round=2)
    assert len(calls(run)) == before + 3, "it is there"


@pytest.mark.slow
def test_the_nightly_flow_writes_it_before_the_next_round_which_measures_nothing(tmp_path: Path) -> None:
    from flows.round import oapl_round

    run = make_run(tmp_path, 3, evaluation={"every_rounds": 2})
    oapl_round(run.root)
    (run.root / "fail").write_text("reports.write=data")
    oapl_round(run.root)
    assert calls(run)[-2:] == ["evaluation.interim round 1", "reports.write"]
    (run.root / "fail").unlink()
    before = len(calls(run))
    oapl_round(run.root)
    assert calls(run)[before : before + 2] == ["reports.write", "rollouts.generate round 2"]
    assert calls(run)[-1] == "training.train round 2"
