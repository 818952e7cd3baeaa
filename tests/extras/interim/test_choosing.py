"""The chosen checkpoint where all rounds' may be: the same numbers decide, and the choice is used as any other."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from oapl_core.changing.cleaning import CleaningRules, candidates
from oapl_core.errors import ConfigError
from oapl_core.evaluation import questions
from oapl_core.evaluation.cards.card import read
from oapl_core.evaluation.evaluate import evaluate
from oapl_core.evaluation.folders.wanted import model_of
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.planning.measurements import deciding, measurements
from oapl_core.planning.preflight import refuse_removed
from oapl_core.reports.results import heldout_table
from oapl_core.reports.results import results as reported
from oapl_core.reports.sections.heldout import validation_table
from oapl_core.run_folder.ledger import RemovalEntry
from oapl_core.run_folder.run import Run
from oapl_core.run_folder.run_record import RunRecord
from oapl_core.settings.experiment_file import load_experiment, parse_experiment
from oapl_core.settings.rehearsal import at_the_end_alone, rehearsal
from oapl_extras.exchange.outgoing import checkpoint_of
from oapl_extras.interim.interim import interim
from tests.core.evaluation.made_up_verifier import MadeUpVerifier, Starts
from tests.sampling_run import MadeUpSampler, made_up_model, make_run, train

ROUNDS = [{"epochs": 2}, {}, {"problems": 4, "epochs": 2}]
OF_ALL: dict[str, Any] = {"every_rounds": 1, "choose_on": "validation_of_all_rounds"}
EPOCHS: dict[str, Any] = OF_ALL | {"every_rounds": "epoch"}


def made(folder: Path, measured: bool = True, prompts: Any = None, **evaluation: Any) -> Run:
    run = make_run(folder, made_up_model(folder.parent / "model"), prompts, rounds=ROUNDS, evaluation=evaluation)
    train(run, range(3))
    for number in run.config.evaluated_rounds[:-1] if measured else ():
        interim(run, number, MadeUpSampler, likes(run, 0, 2))
    return run


def likes(run: Run, number: int, epoch: int) -> MadeUpVerifier:
    best = policy_hash(run.checkpoint(number, epoch))
    return MadeUpVerifier(lambda weights: 0.95 if weights == best else 0.2)


def details(run: Run) -> dict[str, Any]:
    return dict(run.ledger.artifacts()[run.name(run.evaluation())].details)


def test_an_earlier_round_is_chosen_by_its_validation_answers_and_nothing_is_asked_twice(tmp_path: Path) -> None:
    run, plain, end, alone = made(tmp_path / "all", **OF_ALL), made(tmp_path / "plain"), Starts(), Starts()
    evaluate(run, end, likes(run, 0, 2))
    evaluate(plain, alone, likes(run, 0, 2))
    found, other = details(run), details(plain)
    assert (found["chosen"], found["chosen_round"], found["chosen_epoch"]) == ("round 0", 0, 2)
    assert found["chosen_in_words"] == "chosen on validation problems among all rounds"
    assert list(found["validation"]) == ["round 0", "round 1", "round 2 epoch 1", "round 2 epoch 2"]
    assert max(found["validation"], key=lambda name: float(found["validation"][name]["mean_reward"])) == "round 0"
    assert [found["validation"][f"round {n}"]["mean_reward"] for n in (0, 1)] == [mean for _, mean in deciding(run)]
    assert found["heldout"] == other["heldout"] and found["comparisons"] == other["comparisons"]
    assert other["chosen"].startswith("round 2") and "chosen_round" not in other
    # the last round's two epochs on 3 x 2 validation answers, and its best on 4 x 4 held-out ones
    assert sum(len(one.answered) for one in end.samplers) == 2 * 6 + 16
    assert sum(len(one.answered) for one in alone.samplers) == 2 * 6 + 4 * 16


@pytest.mark.slow_if(case=lambda given: (given["stop_after"], given["changes"]) != (7, OF_ALL))
@pytest.mark.parametrize("changes", [OF_ALL, EPOCHS])
@pytest.mark.parametrize("stop_after", [0, 7, 20])
def test_killed_at_the_end_it_chooses_the_same(tmp_path: Path, changes: dict[str, Any], stop_after: int) -> None:
    run, whole = (made(tmp_path / name, **changes) for name in ("killed", "whole"))
    with pytest.raises(InterruptedError):
        evaluate(run, Starts(stop_after), likes(run, 0, 2))
    evaluate(run, MadeUpSampler, likes(run, 0, 2))
    evaluate(whole, MadeUpSampler, likes(run, 0, 2))
    assert details(run) == details(whole) and run.evaluation().read_bytes() == whole.evaluation().read_bytes()


def test_the_choice_is_what_reports_commands_and_cleaning_use(tmp_path: Path) -> None:
    run = made(tmp_path / "all", **OF_ALL)
    assert model_of(str(run.root))["path"] == run.checkpoint(2, 2), "before the end the newest"
    evaluate(run, MadeUpSampler, likes(run, 0, 2))
    taken = model_of(str(run.root))
    assert (taken["path"], taken["origin"]) == (run.checkpoint(0, 2), "chosen on validation problems among all rounds")
    found = reported(RunRecord(run))
    assert found and found.last.checkpoint == "round 0"
    for shown in (heldout_table(found), validation_table(found)):
        assert shown.marked is not None and shown.rows[shown.marked][0] == "round 0 (chosen)"
    origins = {one["label"]: one["origin"] for one in read(run.card())["settings"]["models"]}
    assert origins["round 0"] == taken["origin"] != origins["round 1"]
    assert checkpoint_of(run) == (0, 2), "and pushed"
    for rule in ("chosen", "0"):
        gone = {one.name for one in candidates(run, CleaningRules.parse([f"checkpoints={rule}"]))}
        assert run.name(run.checkpoint(0, 2)) not in gone and run.name(run.checkpoint(1, 1)) in gone


@pytest.mark.slow
def test_of_equal_rounds_the_earliest_is_chosen_and_without_validation_problems_the_last_epoch(tmp_path: Path) -> None:
    same = MadeUpVerifier(lambda _: 1.1)
    run = made(tmp_path / "equal", measured=False, **OF_ALL)
    none = made(tmp_path / "none", False, {"train": [[5]], "validation": [], "heldout": [[7]] * 4}, **OF_ALL)
    for one in (run, none):
        for number in (0, 1):
            interim(one, number, MadeUpSampler, same)
        evaluate(one, MadeUpSampler, same)
    assert details(run)["chosen"] == "round 0"
    assert (details(none)["chosen"], details(none)["chosen_on"]) == ("round 2 epoch 2", "last")
    assert model_of(str(none.root))["path"] == none.checkpoint(2, 2)


def test_every_epoch_is_measured_and_may_be_chosen_and_what_is_missing_of_a_subset_is_asked_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "_PART_ANSWERS", 4)  # one problem a part
    run = made(tmp_path / "all", heldout_problems=2, **EPOCHS)
    axes = {(one.axis, one.step): one.checkpoint for one in measurements(run)}
    measured = {0: "base", 1: "round 0 epoch 1", 2: "round 0", 3: "round 1"}
    assert axes == {
        **{("heldout_subset_by_epoch", step): name for step, name in measured.items()},
        **{("validation_by_epoch", step): name for step, name in measured.items() if step},
    }
    assert [number for number, _ in deciding(run)] == [0, 1], "rules of [stop] compare the ends of rounds"
    best = likes(run, 0, 1)
    end = Starts()
    again = made(tmp_path / "again", measured=False, heldout_problems=2, **EPOCHS)
    for number in (0, 1):
        interim(again, number, MadeUpSampler, best)
    evaluate(again, end, best)
    found = details(again)
    assert (found["chosen"], found["chosen_round"], found["chosen_epoch"]) == ("round 0 epoch 1", 0, 1)
    (newest,) = (name for name in found["heldout"] if name.startswith("round 2 epoch"))
    assert set(found["heldout"]) == {"base", "round 0", "round 1", newest, "round 0 epoch 1"}
    assert {one["problems"] for one in found["heldout"].values()} == {4}
    # three checkpoints and the chosen one lack 2 of 4 problems, the last round's best all
    assert sum(len(one.answered) for one in end.samplers) == 2 * 6 + 4 * 2 * 4 + 16
    assert model_of(str(again.root))["path"] == again.checkpoint(0, 1)
    ends = {(one.axis, one.step): one.checkpoint for one in measurements(again) if one.round is None}
    rounds = {step: name for (axis, step), name in ends.items() if axis == "heldout"}
    assert rounds == {0: "base", 1: "round 0", 2: "round 1", 3: newest}
    assert {name for (axis, _), name in ends.items() if axis == "validation"} == {"round 2 epoch 1", "round 2 epoch 2"}


def test_weights_that_it_will_measure_stay_and_their_absence_is_named(tmp_path: Path) -> None:
    run = made(tmp_path / "all", measured=False, **EPOCHS)
    rule = CleaningRules.parse(["checkpoints=last"])
    (kept,) = (one for one in candidates(run, rule) if one.name == run.name(run.checkpoint(0, 1)))
    assert kept.needed_for
    entry = run.ledger.artifacts()[kept.name]
    run.ledger.append(RemovalEntry(kept.name, entry.sha256, 1, "oapl clean"))
    for verb, number in (("evaluation.interim", 0), ("evaluation.evaluate", None)):
        with pytest.raises(Exception, match=r"reads round_00/4_checkpoint/oapl/epoch_01, which was removed"):
            refuse_removed(run, verb, number)
    refuse_removed(run, "evaluation.interim", 1)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"choose_on": OF_ALL["choose_on"]}, r"choose_on = 'validation_of_all_rounds' .* give evaluation.every_rounds"),
        (
            {"every_rounds": "epoch", "keep": "last"},
            r"every epoch .*keep_checkpoints = 'last' removes the weights .* give 'all'",
        ),
        ({"every_rounds": "epoch", "keep": 1}, r"keep_checkpoints = 1 removes the weights of some before"),
    ],
)
def test_what_could_not_be_done_is_refused_in_one_line(tmp_path: Path, changes: Any, complaint: str) -> None:
    keep, changes = changes.get("keep", "all"), {name: value for name, value in changes.items() if name != "keep"}
    with pytest.raises(ConfigError, match=complaint) as error:
        make_run(
            tmp_path,
            made_up_model(tmp_path / "model"),
            rounds=ROUNDS,
            evaluation=changes,
            training={"keep_checkpoints": keep},
        )
    assert "\n" not in str(error.value)


def test_a_rehearsal_and_an_arm_choose_as_far_as_they_have_rounds(root: Path) -> None:
    values = load_experiment(root / "deployments/experiments/demo.toml").model_dump(mode="json")
    values["evaluation"] |= EPOCHS
    small = rehearsal(parse_experiment(values, "test"), 4)
    assert (small.evaluation.every_rounds, small.evaluation.choose_on) == ("epoch", OF_ALL["choose_on"])
    values["rounds"] = [{}, {}, {}]
    small = rehearsal(parse_experiment(values, "test"), 4)
    assert small.evaluation.is_during == (len(small.rounds) > 1)
    alone = at_the_end_alone(parse_experiment(values, "test").evaluation)
    assert not parse_experiment(values | {"evaluation": values["evaluation"] | alone}, "test").evaluation.is_during


def test_the_example_of_the_page_may_choose_any_epoch(root: Path) -> None:
    example = (root / "docs/extras/interim.md").read_text().split("```toml\n", 3)[2].split("```", 1)[0]
    values = load_experiment(root / "deployments/experiments/demo.toml").model_dump(mode="json")
    values["evaluation"] |= tomllib.loads(example)["evaluation"]
    evaluation = parse_experiment(values, "the page").evaluation
    assert (evaluation.every_rounds, evaluation.choose_on) == ("epoch", "validation_of_all_rounds")
