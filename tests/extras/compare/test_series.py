"""The numbers of figures that set runs side by side are those of a small run, worked out by hand."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from oapl_core.errors import DataError
from oapl_extras.compare import entropies, series
from oapl_extras.compare.series import Point, Series
from oapl_extras.compare.tracks import Track, TrainingStep, read_track
from tests.extras.compare.measured_run import COUNTS, FORCED, SHARES, remove_rollouts, write_measured_run

BETTER = COUNTS | {"round 1 epoch 1": {"aime/1": (4, 4), "aime/2": (4, 4), "hmmt/1": (4, 4)}}


@pytest.fixture(scope="module")
def track(tmp_path_factory: pytest.TempPathFactory) -> Track:
    return read_track(write_measured_run(tmp_path_factory.mktemp("runs")), "one")


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[Track]:
    folder = tmp_path_factory.mktemp("runs")
    shorter = {place: values if place != (1, 2) else values[:1] for place, values in SHARES.items()}
    return [
        read_track(write_measured_run(folder, seed=0), "seeds"),
        read_track(write_measured_run(folder, BETTER, shorter, seed=1), "seeds"),
    ]


def right_share(step: TrainingStep) -> float | None:
    return step.right_share


def curve(found: Sequence[Series], panel: str, checkpoint: str | None = None) -> dict[str, float]:
    """Name -> y of the only series of a panel, and checkpoint."""
    (one,) = [s for s in found if (s.panel, s.checkpoint) == (panel, checkpoint)]
    return {point.name: point.y for point in one.points}


def test_pass_at_k_is_worked_out_for_each_problem_set(track: Track) -> None:
    found = series.pass_at_k([track])
    assert curve(found, "aime", "base") == pytest.approx({"1": 0.25, "2": (0 + 5 / 6) / 2, "4": 0.5})
    assert curve(found, "aime", "round 0") == pytest.approx({"1": 0.625, "2": 0.75, "4": 1.0})
    assert curve(found, "hmmt", "base") == pytest.approx({"1": 0.25, "2": 0.5, "4": 1.0})


def test_answers_without_a_verdict_are_missing_and_not_wrong(track: Track) -> None:
    assert curve(series.pass_at_k([track]), "hmmt", "round 1") == {"1": 1.0, "2": 1.0, "3": 1.0}


def test_two_problem_sets_are_two_panels(track: Track) -> None:
    assert {one.panel for one in series.pass_at_k([track])} == {"aime", "hmmt"}


def test_a_checkpoint_costs_all_steps_and_all_rollouts_until_it_was_made(track: Track) -> None:
    """The chosen epoch is the first of the last round: steps of the second do not count, rollouts of the round do."""
    assert [(m.name, m.steps, m.rollouts) for m in track.milestones] == [
        ("base", 0, 0),
        ("round 0", 2, 40),
        ("round 1", 4, 60),
    ]
    over_steps = next(one for one in series.accuracy([track], lambda m: m.steps) if one.panel == "aime")
    assert [(p.x, p.y) for p in over_steps.points] == [(0, 0.25), (2, 0.625), (4, 0.875)]
    over_samples = next(one for one in series.accuracy([track], lambda m: m.rollouts) if one.panel == "aime")
    assert [(p.x, p.y) for p in over_samples.points] == [(0, 0.25), (40, 0.625), (60, 0.875)]


def test_intervals_contain_their_value_and_are_those_of_the_report(track: Track) -> None:
    for one in series.pass_at_k([track]):
        assert one.interval == series.BOOTSTRAP
        assert all(p.low <= p.y <= p.high for p in one.points)
    base = track.milestones[0].scores["aime"].pass_at(1)
    (drawn,) = [s for s in series.pass_at_k([track]) if (s.panel, s.checkpoint) == ("aime", "base")]
    assert base is not None
    assert (drawn.points[0].low, drawn.points[0].high) == (base.low, base.high)


def test_steps_of_the_rounds_follow_each_other(track: Track) -> None:
    (found,) = series.training([track], "right_share", right_share)
    assert [(p.x, p.y) for p in found.points] == [(1, 0.25), (2, 0.75), (3, 0.5), (4, 1.0), (5, 0.5), (6, 0.5)]
    (kind,) = entropies.measured([track], 30, 8)
    assert [(s.panel, [p.y for p in s.points]) for s in kind.each] == [("entropy", [0.75, 0.25, 0.5, 0.0, 0.5, 0.5])]
    assert kind.smooth == kind.each


def test_a_moving_mean_stays_inside_its_round(track: Track) -> None:
    (found,) = series.training([track], "right_share", right_share, window=3)
    assert [p.y for p in found.points] == pytest.approx([0.5, 0.5, 0.75, 2 / 3, 2 / 3, 0.5])
    assert found.points[0].high == pytest.approx(0.5 + 1.96 * 0.25), "the standard error of 0.25 and 0.75"
    assert found.panel == "right_share, mean of 3 steps"


def test_the_sampling_policys_entropy_stands_where_the_round_begins(track: Track) -> None:
    """2.0 + (-0.5 - share) over the first epoch's steps, which have as many tokens each."""
    (found,) = entropies.sampling_entropy([track])
    assert [(p.x, p.y) for p in found.points] == [(0, 1.0), (2, 0.75)]


def test_runs_of_an_earlier_version_give_its_estimate_which_no_mean_mixes_with_exact_numbers(
    tmp_path: Path, track: Track
) -> None:
    older = [
        read_track(write_measured_run(tmp_path, seed=seed, entropy="policy_entropy"), track.label) for seed in (5, 6)
    ]
    exact, estimated = entropies.measured([older[0], track, older[1]], 30, 2)
    assert ([s.runs for s in exact.each], exact.suffix) == ([(track.run,)], "")
    assert [s.runs for s in series.drawn(estimated.each)] == [(older[0].run, older[1].run)]
    assert {s.panel for s in estimated.smooth} == {"entropy, estimated, mean of 3 steps"}
    assert estimated.each[0].points == exact.each[0].points


def test_seeds_are_drawn_as_their_mean_with_their_range(seeds: list[Track]) -> None:
    found = series.pass_at_k(seeds)
    (mean,) = [s for s in series.drawn(found) if (s.panel, s.checkpoint) == ("aime", "round 1")]
    assert mean.interval == "range of 2 runs"
    assert mean.points[0] == Point("1", 1, (0.875 + 1.0) / 2, 0.875, 1.0, 2)
    assert len([s for s in found if (s.panel, s.checkpoint) == ("aime", "round 1")]) == 3, "each run's numbers stay"


def test_a_mean_over_steps_ends_with_the_shortest_seed(seeds: list[Track]) -> None:
    (mean,) = series.drawn(series.training(seeds, "right_share", right_share))
    assert [p.x for p in mean.points] == [1, 2, 3, 4, 5]


def test_settings_with_a_label_each_are_not_averaged(seeds: list[Track]) -> None:
    apart = [Track(**(vars(track) | {"label": track.run})) for track in seeds]
    assert not [one for one in series.pass_at_k(apart) if one.is_mean]


def test_one_line_is_enough_for_a_base_that_all_share(track: Track, seeds: list[Track]) -> None:
    assert series.one_base([track, *seeds])
    assert not series.one_base([track])


def test_of_several_settings_base_and_last_are_shown(track: Track, seeds: list[Track]) -> None:
    assert series.shown_checkpoints([track]) == {"one": ["base", "round 0", "round 1"]}
    assert series.shown_checkpoints([track, *seeds]) == {"one": ["base", "round 1"], "seeds": ["base", "round 1"]}


def test_the_table_has_every_point_of_every_run_and_of_the_mean(seeds: list[Track]) -> None:
    found = series.accuracy(seeds, lambda m: m.rollouts)
    rows = series.table(found, {"panel": "problem_set", "name": "checkpoint", "x": "rollouts", "y": "pass_at_1"})
    assert len(rows) == 3 * 2 * 3
    last = [r for r in rows if r["problem_set"] == "aime" and r["checkpoint"] == "round 1"]
    assert [r["pass_at_1"] for r in last] == [0.875, 1.0, 0.9375]
    assert [r["runs"] for r in last] == ["synthetic-seed0", "synthetic-seed1", "synthetic-seed0 synthetic-seed1"]


def test_removed_rollouts_change_nothing(tmp_path: Path, track: Track) -> None:
    run = write_measured_run(tmp_path)
    remove_rollouts(run)
    cleaned = read_track(run, "one")
    assert cleaned.milestones == track.milestones
    assert cleaned.steps == track.steps
    assert cleaned.rollouts == 60


def test_an_unfinished_run_gives_what_it_has_and_says_what_is_missing(tmp_path: Path) -> None:
    first = {name: COUNTS[name] for name in ("base", "round 0")}
    trained = {place: SHARES[place] for place in ((0, 1), (1, 1))}
    found = read_track(write_measured_run(tmp_path, first, trained, is_finished=False), "one")
    assert [m.name for m in found.milestones] == ["base", "round 0"]
    assert len(found.steps) == 4
    assert found.missing == (
        "synthetic-seed0: round 1: 1 of 2 epochs are trained",
        "synthetic-seed0: held-out problems are measured for base, round 0 only",
    )


def test_a_checkpoint_that_has_not_answered_every_problem_is_left_out(tmp_path: Path) -> None:
    partly = COUNTS | {"round 0": {"aime/1": (4, 1)}}
    found = read_track(write_measured_run(tmp_path, partly, is_finished=False), "one")
    assert [m.name for m in found.milestones] == ["base", "round 1"]


def test_an_epoch_chosen_by_what_is_reported_is_called_that_and_stands_for_its_round(tmp_path: Path) -> None:
    forced = {name: COUNTS[name] for name in ("base", "round 0")}
    forced |= {"round 1 epoch 2": COUNTS["base"], FORCED: COUNTS["round 1 epoch 1"]}
    found = read_track(write_measured_run(tmp_path, forced), "one")
    assert [m.name for m in found.milestones] == ["base", "round 0", "round 1 (chosen on what is reported)"]
    assert found.milestones[-1].steps == 4


def test_a_run_that_was_only_sampled_says_so(tmp_path: Path) -> None:
    found = read_track(write_measured_run(tmp_path, {}, {}, is_finished=False), "one")
    assert not found.milestones
    assert found.missing == (
        "synthetic-seed0: 2 of 2 rounds are not trained",
        "synthetic-seed0: no checkpoint is measured on held-out problems yet",
    )


def test_metrics_of_an_earlier_version_are_missing_and_not_zero(tmp_path: Path) -> None:
    run = write_measured_run(tmp_path)
    (run.checkpoint(0, 1) / "training_metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n')
    found = read_track(run, "one")
    assert [step.right_share for step in found.steps] == [None, None, 0.5, 1.0, 0.5, 0.5]
    assert [p.x for s in series.training([found], "right_share", right_share) for p in s.points] == [3, 4, 5, 6]
    assert any("2 of 6 steps do not record the policy's entropy" in text for text in found.missing)
    assert found.has_entropy


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    foreign = COUNTS | {"round 0": COUNTS["round 0"]}
    run = write_measured_run(tmp_path, foreign, {(1, 1): (0.5,), (1, 2): (0.5,)})
    with pytest.raises(DataError, match="measured 'round 0' .hash-0-1., which no round of this run made"):
        read_track(run, "one")
