"""A run with a warm start: its place in the plan, what a redo, a fork and a cleaning do with it, what is measured."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oapl_core.changing.cleaning import CleaningRules, candidates, remove
from oapl_core.changing.forking import fork
from oapl_core.changing.redoing import Again, put_aside
from oapl_core.errors import ConfigError, DataError
from oapl_core.evaluation.evaluate import evaluate
from oapl_core.evaluation.wanted import model_of
from oapl_core.model_folder import policy_hash
from oapl_core.planning.model_size import ModelSize
from oapl_core.planning.plan import finished, steps
from oapl_core.planning.preflight import before_stage
from oapl_core.reports.facts import gather
from oapl_core.reports.results import results
from oapl_core.run_folder.ledger import StageEntry
from oapl_core.run_folder.run import METRICS_FILE, Run
from oapl_core.run_folder.storage import classify
from oapl_core.settings.rehearsal import rehearsal
from oapl_extras.compare.series import shown_checkpoints
from oapl_extras.compare.tracks import read_track
from oapl_extras.plan.estimate import ProblemCounts, estimate
from tests.core.evaluation.made_up_verifier import MadeUpVerifier
from tests.sampling_run import MadeUpSampler, made_up_model, make_run, train, warm_start

EPOCHS = 3


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Warm-started: nothing is sampled."""
    (tmp_path / "shown.jsonl").write_text('{"problem_id": "train-0", "solution": "1"}\n')
    warm: dict[str, Any] = {"data": tmp_path / "shown.jsonl", "epochs": EPOCHS}
    made = make_run(tmp_path, made_up_model(tmp_path / "model"), warm_start=warm)
    with made.writing(made.demonstrations, made.inputs([tmp_path / "shown.jsonl"]), {}) as draft:
        draft.path.write_text("rows")
    made.ledger.append(StageEntry("problems.prepare", 1.0, 0))
    warm_start(made)
    made.ledger.append(StageEntry("training.warm_start", 1.0, 0))
    return made


def test_it_is_a_step_before_round_0_that_other_demonstrations_open_again(run: Run, tmp_path: Path) -> None:
    titles = [step.title for step in steps(run.config)]
    assert titles[:3] == ["problems and prompts", "warm start", "round 0: sampling"]
    assert [step.title for step in finished(run)] == titles[:2]
    (tmp_path / "shown.jsonl").write_text("{}\n")
    assert finished(run) == []


def test_a_redo_makes_it_again_and_leaves_the_demonstrations(run: Run) -> None:
    state = run.demonstrations.parent / "state" / "epoch_01_step_000001"
    state.mkdir(parents=True)
    moved = put_aside(run, Again("warm-start"), print)
    assert moved == [f"warm_start/epoch_{epoch:02d}" for epoch in (1, 2, 3)]
    assert not state.parent.exists()
    assert run.demonstrations.exists()
    assert [step.title for step in finished(run)] == ["problems and prompts"]


def test_weights_go_by_rule_but_those_that_something_needs(run: Run) -> None:
    (run.demonstrations.parent / "state").mkdir()
    (run.demonstrations.parent / "state" / "weights.pt").write_bytes(b"x")

    def split(*rules: str) -> tuple[list[str], dict[str, str]]:
        found = candidates(run, CleaningRules.parse(rules))
        return [one.name for one in found if not one.needed_for], {one.name: one.needed_for or "" for one in found}

    assert split("checkpoints=last")[0] == ["warm_start/state/weights.pt", "warm_start/epoch_01", "warm_start/epoch_02"]
    assert split("checkpoints=chosen")[1]["warm_start/epoch_03"] == "round 0 starts from it"
    run.ledger.append(StageEntry("training.warm_start", 1.0, 1))
    going, why = split("checkpoints=0")
    assert going == []
    assert set(why.values()) == {"the warm start resumes from it", "the warm start is not trained to its end"}
    kinds = {
        "state/x": "optimiser states",
        "epoch_01/model.safetensors": "checkpoints",
        "demonstrations.parquet": "problems",
    }
    for name, kind in kinds.items():
        assert classify(("warm_start", *name.split("/"))) == (kind, None)


def test_sampling_from_weights_that_went_says_how_to_make_them_again(run: Run) -> None:
    going = [one for one in candidates(run, CleaningRules.parse(["checkpoints=0"])) if one.name.endswith("03")]
    remove(run, [replace(one, needed_for=None) for one in going])
    with pytest.raises(DataError, match=r"reads warm_start/epoch_03, which was removed .*--redo warm-start"):
        before_stage(run, "rollouts.generate", 0)


def test_a_fork_shares_it_and_cannot_have_another(run: Run) -> None:
    assert fork(run, "other", 0).run.policy(0).joinpath("model.safetensors").exists()
    with pytest.raises(ConfigError, match=r"warm_start.epochs .*what the fork would share was made with that"):
        fork(run, "third", 0, ["warm_start.epochs=4"])


def test_base_is_what_round_0_starts_from_and_the_model_before_is_measured_beside_it(run: Run) -> None:
    train(run)
    evaluate(run, MadeUpSampler, MadeUpVerifier(lambda _: 0.5))
    for path in (run.checkpoint(0, 1), *(run.checkpoint(1, epoch) for epoch in (1, 2, 3))):
        (path / METRICS_FILE).write_text("{}\n")
    labels = ["before warm start", "base", "round 0", "round 1"]
    track = read_track(run, "one")
    assert [one.name for one in track.milestones] == labels
    assert [one.policy_hash for one in track.milestones[:2]] == [
        policy_hash(run.base_model()),
        policy_hash(run.policy(0)),
    ]
    assert shown_checkpoints([track, track])["one"] == labels
    found = results(gather(run))
    assert found is not None
    assert (found.base.checkpoint, found.heldout[0].checkpoint) == ("base", "before warm start")
    origins = json.loads(run.card().read_text())["origin"]["models"]
    assert origins["base"] == "base model of the run, warm-started"
    assert model_of(f"{run.root}:base")["path"] == run.policy(0)


def test_its_cost_by_hand_and_its_rehearsal(run: Run) -> None:
    config = run.config
    found = estimate(config, ModelSize.like(1e9), ProblemCounts(7, 3, 4, demonstrations=300))
    assert found.warm_start is not None
    assert (found.warm_start.steps.expected, found.warm_start.checkpoints) == (3 * 3, 3)
    without = config.model_copy(update={"warm_start": None})
    plain = estimate(without, ModelSize.like(1e9), ProblemCounts(7, 3, 4))
    measured = (found.evaluation.sampling_h.most, plain.evaluation.sampling_h.most)
    assert found.hours.most == pytest.approx(
        plain.hours.most + found.warm_start.training_h.most + measured[0] - measured[1]
    )
    assert found.evaluation.checkpoints == plain.evaluation.checkpoints + 1
    assert found.disk["checkpoints"].most == plain.disk["checkpoints"].most + 3 * 2e9
    small = rehearsal(config, 4).warm_start
    assert small is not None
    assert (small.limit, small.epochs, small.batch_size, small.max_tokens) == (4, 2, 4, 12)
    elsewhere = rehearsal(config.model_copy(update={"model": Path("nowhere")}), 4)
    assert elsewhere.pretrain is not None
    assert elsewhere.pretrain.max_positions >= 128 + 12, "the model that takes its place has room for them"
