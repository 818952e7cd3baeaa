"""A run whose first round trains on demonstrations: plan, redo, forks, cleaning, what samples, what is measured."""

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
from oapl_core.evaluation.folders.wanted import model_of
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.planning.model_size import ModelSize
from oapl_core.planning.plan import finished, steps
from oapl_core.planning.preflight import before_stage
from oapl_core.reports.results import results
from oapl_core.rollouts.generate import generate
from oapl_core.run_folder.ledger import StageEntry
from oapl_core.run_folder.run import METRICS_FILE, Run
from oapl_core.run_folder.run_record import RunRecord
from oapl_core.settings.rehearsal import rehearsal
from oapl_core.settings.rows.reading import ReadRows
from oapl_extras.compare.tracks import read_track
from oapl_extras.plan.estimate import ProblemCounts, estimate
from oapl_extras.prefect_pages.round_summary import summarize
from oapl_extras.trackers.figures import rows as tracked
from tests.core.evaluation.made_up_verifier import MadeUpVerifier
from tests.sampling_run import MadeUpSampler, made_up_model, make_run, train

EPOCHS = 3
MADE = [f"round_00/4_checkpoint/sft/epoch_{epoch:02d}" for epoch in (1, 2, 3)]
STEP = dict.fromkeys(("log_ratio", "log_ratio_right", "log_ratio_wrong"), None) | dict.fromkeys(
    ("epoch", "loss", "learning_rate", "grad_norm"), 1.0
)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Trained on demonstrations: nothing is sampled."""
    (tmp_path / "shown.jsonl").write_text('{"problem_id": "train-0", "solution": "1"}\n')
    shown: dict[str, Any] = {"rows": {"demonstrations": tmp_path / "shown.jsonl"}, "epochs": EPOCHS}
    made = make_run(tmp_path, made_up_model(tmp_path / "model"), rounds=[shown, {"epochs": 1}, {"epochs": 3}])
    made.ledger.append(StageEntry("problems.prepare", 1.0, 0))
    with made.writing(made.groups(0), made.inputs([tmp_path / "shown.jsonl"]), {}) as draft:
        draft.path.write_text("rows")
        counts = dict.fromkeys(("rollouts", "kept_rollouts", "kept_groups", "correct_rollouts"), 1)
        draft.rows, draft.details = 1, counts | {"dropped": {}}
    made.ledger.append(StageEntry("problems.demonstrate round 0", 1.0, 0))
    train(made, (0,))
    made.ledger.append(StageEntry("training.train round 0", 1.0, 0))
    return made


def test_such_a_round_reads_and_trains_and_other_demonstrations_open_it_again(run: Run, tmp_path: Path) -> None:
    titles = [step.title for step in steps(run.config)]
    assert titles[:4] == ["problems and prompts", "round 0: groups", "round 0: training", "round 1: sampling"]
    assert [step.title for step in finished(run)] == titles[:3]
    (tmp_path / "shown.jsonl").write_text("{}\n")
    assert [step.title for step in finished(run)] == titles[:1]


def test_a_redo_makes_its_training_again_and_leaves_its_rows(run: Run) -> None:
    state = run.states(0) / "epoch_01_step_000001"
    state.mkdir(parents=True)
    assert put_aside(run, Again("training", 0), print) == MADE
    assert not state.parent.exists()
    assert run.groups(0).exists()
    assert [step.title for step in finished(run)] == ["problems and prompts", "round 0: groups"]
    assert put_aside(run, Again("groups", 0), print) == ["round_00/3_groups.parquet"]
    with pytest.raises(ConfigError, match="round 0: has no sampling, but groups and training"):
        put_aside(run, Again("sampling", 0), print)


def test_weights_go_by_rule_but_those_that_something_needs(run: Run) -> None:
    run.states(0).mkdir(parents=True)
    (run.states(0) / "weights.pt").write_bytes(b"x")

    def split(*rules: str) -> tuple[list[str], dict[str, str]]:
        found = candidates(run, CleaningRules.parse(rules))
        return [one.name for one in found if not one.needed_for], {one.name: one.needed_for or "" for one in found}

    assert split("checkpoints=last")[0] == [run.name(run.states(0) / "weights.pt"), *MADE[:2]]
    assert split("checkpoints=chosen")[1][MADE[2]] == "round 1 starts from it"
    run.ledger.append(StageEntry("training.train round 0", 1.0, 1))
    going, why = split("checkpoints=0", "groups=0")
    assert going == []
    assert set(why.values()) == {"round 0 resumes from it", "round 0 is not trained to its end"}


def test_sampling_from_weights_that_went_says_how_to_make_them_again(run: Run) -> None:
    going = [one for one in candidates(run, CleaningRules.parse(["checkpoints=0"])) if one.name.endswith("03")]
    remove(run, [replace(one, needed_for=None) for one in going])
    with pytest.raises(DataError, match=r"reads .*sft/epoch_03, which was removed .*--redo training --round 0"):
        before_stage(run, "rollouts.generate", 1)


def test_a_fork_shares_it_and_cannot_have_another(run: Run) -> None:
    other = fork(run, "other", 1, ['objective={name = "rft"}']).run
    assert other.policy(1).joinpath("model.safetensors").exists()
    assert other.name(other.checkpoints(1)) == "round_01/4_checkpoint/rft"
    with pytest.raises(ConfigError, match=r"rounds.0.epochs .*what the fork would share was made with that"):
        fork(run, "third", 1, ["rounds.0.epochs=4"])
    again = fork(run, "again", 0, ["rounds.0.epochs=4"]).run
    assert (again.ledger.forks()[0].stage, again.policy(1).exists()) == ("groups", False)
    trained = fork(run, "rate", 0, ["rounds.0.training.learning_rate=1e-3"], "training").run
    assert trained.groups(0).exists()
    with pytest.raises(ConfigError, match=r"rounds.0.rows.limit .*what the fork would share was made with that"):
        fork(run, "fewer", 0, ["rounds.0.rows.limit=1"], "training")


def test_nothing_is_sampled_for_it_or_with_what_was_before_it(run: Run) -> None:
    with pytest.raises(DataError, match=r"round 0: trains on demonstrations \(`rounds.0.rows`\) and has no rollouts"):
        generate(run, 0, MadeUpSampler)
    changes = {"pipeline": {}, "sync": {"offset_rounds": 2}, "training": {"optimizer_state": "fresh"}}
    lagged = type(run.config).model_validate(run.config.model_dump(mode="json") | changes)
    assert [lagged.sampling_round(number) for number in range(3)] == [0, 1, 1], "0 and -1 were before it"


def test_rows_of_demonstrations_are_not_replayed(run: Run) -> None:
    values = run.config.model_dump(mode="json")
    values["rounds"][2]["replay"] = {"rounds": 2}
    assert type(run.config).model_validate(values).groups_before(2) == (1,)


def test_it_is_measured_and_reported_as_every_round(run: Run, tmp_path: Path) -> None:
    train(run, (1, 2))
    evaluate(run, MadeUpSampler, MadeUpVerifier(lambda _: 0.5))
    for number, epochs in enumerate((3, 1, 3)):
        for epoch in range(1, epochs + 1):
            (run.checkpoint(number, epoch) / METRICS_FILE).write_text(json.dumps(STEP | {"step": epoch}) + "\n")
    labels = ["base", "round 0", "round 1", "round 2"]
    track = read_track(run, "one")
    assert [(one.name, one.rollouts) for one in track.milestones] == [(label, 0) for label in labels]
    assert [one.policy_hash for one in track.milestones[:2]] == [policy_hash(run.policy(number)) for number in (0, 1)]
    facts = RunRecord(run)
    found = results(facts)
    assert found is not None
    assert [one.checkpoint for one in found.heldout][:3] == labels[:3]
    assert (facts.rounds[0].kept, sorted(facts.rounds[0].epochs), facts.rounds[0].rollouts) == (1, [1, 2, 3], 0)
    assert not [text for text in facts.missing if text.startswith("round 0")], "it has all that it makes"
    assert summarize(run, 0, tmp_path).headline == "1 demonstrations trained on"
    assert {row.axis for row in tracked(run)} == {"training", "rounds", "heldout", "validation", "costs"}
    assert model_of(f"{run.root}:round_00")["path"] == run.policy(1)


def test_its_cost_by_hand_and_its_rehearsal(run: Run) -> None:
    found = estimate(run.config, ModelSize.like(1e9), ProblemCounts(7, 3, 4, read={0: 300}))
    shown, sampled = found.rounds[:2]
    assert (shown.rollouts, shown.sampling_h, shown.checkpoints) == (0, 0, 3)
    assert (shown.steps, shown.sequences) == (3 * 3, 300), "RFT's batches of 128"
    assert shown.training_h > 0 < sampled.sampling_h
    assert found.evaluation.checkpoints == 4
    small = rehearsal(run.config, 4)
    rows = small.rounds[0].source
    assert isinstance(rows, ReadRows)
    assert (rows.most_of_a_file, rows.longest) == (4, 12)
    assert (small.rounds[0].epochs, small.of_round(0).training.batch_size) == (2, 4)
    elsewhere = rehearsal(run.config.model_copy(update={"model": Path("nowhere")}), 4)
    assert elsewhere.pretrain is not None
    assert elsewhere.pretrain.max_positions >= 128 + 12, "the model that takes its place has room for them"
