"""A comparison: arms share rollouts to the byte, are trained apart, and their numbers say who is better."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oapl_core.errors import ConfigError, DataError, Diverged, StageFailed
from oapl_core.evaluation.scores import Resampling, Score
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.objectives import shipped
from oapl_core.planning.plan import finished, steps
from oapl_core.rollouts.generate import generate
from oapl_core.run_folder.ledger import StageEntry
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import parse_as, read_toml
from oapl_core.settings.operation.stop import StopConfig
from oapl_extras.compare.arm_tables import held_out_table
from oapl_extras.compare.arms import Means, read_results
from oapl_extras.compare.beginning import begin
from oapl_extras.compare.folder import Arm, Comparison, state_of
from oapl_extras.compare.measuring import evaluate_arms
from oapl_extras.compare.settings import ComparisonConfig
from oapl_extras.compare.together import write_report
from tests.core.evaluation.made_up_verifier import MadeUpVerifier, Starts
from tests.sampling_run import MadeUpSampler, made_up_model, make_run
from tests.whole_run import ROOT

ARMS: list[dict[str, Any]] = [
    {"label": "OAPL"},
    {"label": "GRPO", "objective": {"name": "grpo"}},
    {"label": "GRPO, fast", "objective": {"name": "grpo"}, "training": {"learning_rate": 0.5}},
]


def write(run: Run, path: Path, text: str) -> None:
    with run.writing(path, {}, {}) as draft:
        draft.path.write_text(text)


@pytest.fixture
def parent(tmp_path: Path) -> Run:
    """A run of two rounds whose first was trained and whose second is ready to be."""
    run = make_run(tmp_path / "runs", made_up_model(tmp_path / "model"), rounds=[{}, {"problems": 4}])
    for number in (0, 1):
        generate(run, number, MadeUpSampler)
        write(run, run.verdicts(number) / "part-00000.parquet", f"verdicts {number}")
        write(run, run.groups(number), f"groups {number}")
        if number == 0:
            finish(run, 0, weight=10.0)
    for step in steps(run.config)[:8]:
        run.ledger.append(StageEntry(step.label, 1.0, 0))
    return run


def finish(run: Run, number: int, weight: float) -> None:
    """As training would: every epoch, and how its process ended."""
    inputs = run.inputs([run.groups(number), run.policy(number)])
    for epoch in range(1, run.config.rounds[number].epochs + 1):
        with run.writing(run.checkpoint(number, epoch), inputs, {}) as draft:
            made_up_model(draft.path, weight + epoch)
            line = '{"step": 1, "epoch": 1, "entropy": 0.5, "response_tokens": 10, "sequences": 4}\n'
            (draft.path / "training_metrics.jsonl").write_text(line)
            draft.details = {
                "policy_hash": policy_hash(draft.path),
                "steps": 1,
                "sequences": 4,
                "epoch_s": 2.0,
                "kl": 0.25,
            }
    run.ledger.append(StageEntry(f"training.train round {number}", 3.0, 0))


def compare(parent: Run, arms: Sequence[dict[str, Any]] = ARMS, **changes: Any) -> Comparison:
    values = {"name": "few", "run": str(parent.root), "seeds": [0, 1], "round": 0, "arms": list(arms)} | changes
    return Comparison.create(parse_as(ComparisonConfig, values, "test"), parent)


def train(comparison: Comparison, but: Sequence[str] = ()) -> None:
    """Every arm, each with weights of its own."""
    for number, arm in enumerate(comparison.arms):
        run = begin(comparison, arm)
        if arm.name in but:
            run.ledger.append(StageEntry(arm.training.label, 1.0, Diverged.exit_code, "loss is nan"))
        elif not arm.is_trained:
            finish(run, arm.round, weight=100.0 * (number + 1))


def arm(comparison: Comparison, name: str) -> Arm:
    return next(one for one in comparison.arms if one.name == name)


def test_every_arm_has_every_seed_and_its_own_settings(parent: Run) -> None:
    comparison = compare(parent, evaluation={"heldout_samples": 2}, training={"learning_rate": 0.1})
    assert [one.name for one in comparison.arms][:4] == [
        "OAPL, seed 0",
        "GRPO, seed 0",
        "GRPO, fast, seed 0",
        "OAPL, seed 1",
    ]
    fast = arm(comparison, "GRPO, fast, seed 1")
    assert fast.root == parent.root.parent / "compare" / "few" / "arms" / "grpo-fast-seed1"
    assert (fast.config.objective.name, fast.config.training.learning_rate, fast.config.seed) == ("grpo", 0.5, 1)
    assert arm(comparison, "GRPO, seed 1").config.training.learning_rate == 0.1
    assert {one.config.evaluation.heldout_samples for one in comparison.arms} == {2}
    assert {len(one.config.rounds) for one in comparison.arms} == {1}


def test_a_limit_of_the_common_run_ends_no_arm(parent: Run) -> None:
    limited = replace(parent, config=parent.config.model_copy(update={"stop": StopConfig(wall_hours=1.0)}))
    assert not any(one.config.stop.is_on for one in compare(limited).arms)


def test_the_baselines_have_every_objective_once_at_least_and_one_budget() -> None:
    values = read_toml(ROOT / "deployments" / "experiments" / "baselines.toml")
    config = parse_as(ComparisonConfig, values, "baselines.toml")
    assert {arm.objective.name for arm in config.arms} == shipped().keys()
    assert not [arm.label for arm in config.arms if arm.training or arm.epochs or arm.keep]


@pytest.mark.parametrize("number", [0, 1])
def test_arms_share_rollouts_verdicts_and_groups_to_the_byte(parent: Run, number: int) -> None:
    comparison = compare(parent, round=number)
    train(comparison)
    data = [comparison.data_of(one) for one in comparison.arms]
    assert all(one == data[0] for one in data)
    assert data[0].groups == parent.ledger.artifacts()[parent.name(parent.groups(number))].sha256
    for one in comparison.arms:
        mine = one.run()
        assert mine.groups(number).stat().st_ino == parent.groups(number).stat().st_ino
        assert mine.policy(number) == (parent.policy(0) if number == 0 else mine.checkpoint(0, 1))
        assert policy_hash(mine.policy(number)) == policy_hash(parent.policy(number))
        assert mine.checkpoints(number).name == one.config.objective.name
        assert one.training in finished(mine)


def test_another_filter_makes_groups_again_from_the_same_rollouts(parent: Run) -> None:
    comparison = compare(parent, [*ARMS[:1], {"label": "mixed", "keep": "mixed"}], seeds=[0])
    first, second = comparison.arms
    assert (first.stage, second.stage) == ("training", "groups")
    run = begin(comparison, second)
    assert [step.verb for step in finished(run)][-1] == "verdicts.verify"
    write(run, run.groups(0), "other groups")
    run.ledger.append(StageEntry("groups.build round 0", 1.0, 0))
    train(comparison)
    mine, theirs = comparison.data_of(second), comparison.data_of(first)
    assert mine.rollouts == theirs.rollouts
    assert mine.groups != theirs.groups


def test_an_arm_with_other_rollouts_is_refused(parent: Run) -> None:
    comparison = compare(parent)
    train(comparison)
    one = comparison.arms[0].run()
    write(one, one.rollouts(0) / "part-00000.parquet", "sampled again")
    with pytest.raises(DataError, match="its rollouts or verdicts are not those of"):
        comparison.data_of(comparison.arms[0])


def test_arms_and_seeds_may_be_added_but_a_begun_arm_keeps_its_settings(parent: Run) -> None:
    train(compare(parent))
    more = compare(parent, [*ARMS, {"label": "new"}], seeds=[0, 1, 2])
    states = [(one.name, state_of(one)) for one in more.arms]
    assert [name for name, state in states if state == "to do"] == [
        "new, seed 0",
        "new, seed 1",
        "OAPL, seed 2",
        "GRPO, seed 2",
        "GRPO, fast, seed 2",
        "new, seed 2",
    ]
    with pytest.raises(ConfigError, match=r"GRPO, seed 0: was begun with other settings \(objective.clip_low was 0.2"):
        compare(parent, [{"label": "GRPO", "objective": {"name": "grpo", "clip_low": 0.3}}])
    with pytest.raises(ConfigError, match="compares arms on round 0 of"):
        compare(parent, round=1)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"arms": [*ARMS, {"label": "grpo fast"}]}, "two arms are called"),
        ({"seeds": [1, 1]}, "a seed is given twice"),
        ({"arms": [{"label": "x", "objective": {"name": "grop"}}]}, "objective"),
        ({"arms": [{"label": "x", "training": {"learning_rat": 1}}]}, "arm 'x': unknown key `training.learning_rat`"),
        ({"experiment": "demo.toml"}, "give exactly one of `experiment`"),
        ({"overrides": ["seed=1"]}, "a run keeps its settings"),
        ({"evaluation": {"every_rounds": 1}}, "evaluation.every_rounds: arms are measured at their end alone"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(parent: Run, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        compare(parent, **({"arms": ARMS} | changes))
    assert "\n" not in str(caught.value)


def judge(comparison: Comparison) -> MadeUpVerifier:
    """GRPO solves most, the base least."""
    rates = {policy_hash(comparison.parent.base_model()): 0.1}
    for one in (arm for arm in comparison.arms if arm.is_trained):
        rates[policy_hash(one.run().checkpoint(0, 1))] = 0.9 if one.label == "GRPO" else 0.4
    return MadeUpVerifier(lambda weights: rates[weights])


def test_one_engine_measures_every_arm_and_the_base_once_for_each_seed(parent: Run) -> None:
    comparison, starts = compare(parent), Starts()
    train(comparison, but=["GRPO, fast, seed 1"])
    evaluate_arms(comparison, starts, judge(comparison))
    assert len(starts.samplers) == 1
    per_checkpoint = 4 * 4 + 3 * 2  # held-out and validation answers
    base_answers = 4 * 4
    assert len(starts.samplers[0].answered) == 5 * per_checkpoint + 2 * base_answers
    states = {one.name: state_of(one) for one in comparison.arms}
    assert states.pop("GRPO, fast, seed 1") == "diverged"
    assert set(states.values()) == {"measured"}
    evaluate_arms(comparison, starts, judge(comparison))
    assert len(starts.samplers) == 1, "what is measured is not measured again"


def test_measuring_goes_on_where_it_broke(parent: Run) -> None:
    comparison = compare(parent)
    train(comparison)
    whole, broken = Starts(), Starts(stop_after=60)
    with pytest.raises(InterruptedError):
        evaluate_arms(comparison, broken, judge(comparison))
    evaluate_arms(comparison, whole, judge(comparison))
    assert all(one.is_measured for one in comparison.arms)
    assert len(broken.samplers[0].answered) + len(whole.samplers[0].answered) < 6 * 22 + 2 * 16 + 22


@pytest.mark.slow
def test_an_arm_that_cannot_be_measured_does_not_stop_the_others(parent: Run) -> None:
    comparison = compare(parent)
    train(comparison)
    broken = comparison.arms[1].run().checkpoint(0, 1)

    class Fragile(MadeUpSampler):
        def load(self, model_dir: Path) -> None:
            if model_dir == broken:
                raise StageFailed("cannot load it")
            super().load(model_dir)

    with pytest.raises(StageFailed, match=r"GRPO, seed 0: could not be measured \(cannot load it\)"):
        evaluate_arms(comparison, Fragile, judge(comparison))
    assert [one.is_measured for one in comparison.arms] == [True, False, *[True] * 4]


def test_the_report_names_the_best_arm_the_failed_ones_and_the_common_data(parent: Run) -> None:
    comparison = compare(parent)
    train(comparison, but=["GRPO, fast, seed 0", "GRPO, fast, seed 1"])
    evaluate_arms(comparison, MadeUpSampler, judge(comparison))
    write_report(comparison)
    files = {path.name for path in comparison.report.iterdir()}
    assert {"index.html", "report.md", "table.csv", "arms.png", "pass_at_k.png", "entropy.png"} <= files
    text = (comparison.report / "report.md").read_text()
    groups = parent.ledger.artifacts()[parent.name(parent.groups(0))].sha256
    assert groups[:16] in text
    assert "GRPO has the highest pass@1" in text
    assert "loss is nan" in text
    with (comparison.report / "table.csv").open() as file:
        rows = {row["arm"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["GRPO", "OAPL", "GRPO, fast", "base"]
    assert float(rows["GRPO"]["pass_at_1"]) > float(rows["OAPL"]["pass_at_1"]) > float(rows["base"]["pass_at_1"])
    assert (rows["OAPL"]["difference"], rows["GRPO, fast"]["pass_at_1"]) == ("", "")
    assert float(rows["GRPO"]["difference"]) > 0
    assert (rows["GRPO"]["kl"], rows["GRPO"]["entropy"], rows["GRPO"]["steps"]) == ("0.25", "0.5", "1.0")
    assert rows["GRPO, fast"]["failed"] == "2"


def test_a_report_is_written_again_only_when_an_arm_has_gone_on(parent: Run) -> None:
    comparison = compare(parent, seeds=[0])
    write_report(comparison)
    index = comparison.report / "index.html"
    assert "OAPL, seed 0: is still to be trained" in index.read_text()
    before = index.stat().st_mtime_ns
    write_report(comparison)
    assert index.stat().st_mtime_ns == before
    train(comparison)
    write_report(comparison)
    assert index.stat().st_mtime_ns != before


def score(counts: dict[str, tuple[int, int]]) -> Score:
    return Score("x", "0", 0, 0, 0, counts, Resampling(200, 0))


def test_means_are_over_seeds_within_a_problem_and_differences_are_paired() -> None:
    easy, hard = {"a": (4, 4), "b": (4, 1)}, {"a": (4, 2), "b": (4, 1)}
    means = Means.of([score(easy), score(hard)], 1)
    assert means is not None
    assert means.by_problem == {"a": 0.75, "b": 0.25}
    assert means.all.mean == pytest.approx(0.5)
    assert means.seeds == pytest.approx((0.625, 0.375))
    other = Means.of([score({"a": (4, 3), "b": (4, 0), "c": (4, 4)})], 1)
    assert other is not None
    gain = other.minus(means)
    assert gain is not None
    assert gain.mean == pytest.approx(-0.125)
    assert gain.problems == 2
    assert gain.low <= gain.mean <= gain.high


def test_a_problem_that_a_seed_cannot_answer_k_times_is_left_out() -> None:
    means = Means.of([score({"a": (4, 4), "b": (4, 1)}), score({"a": (4, 2), "b": (1, 1)})], 2)
    assert means is not None
    assert set(means.by_problem) == {"a"}
    assert Means.of([score({"a": (1, 1)})], 2) is None


def test_a_table_of_one_measured_arm_has_no_difference(parent: Run) -> None:
    comparison = compare(parent, ARMS[:1], seeds=[0])
    train(comparison)
    evaluate_arms(comparison, MadeUpSampler, judge(comparison))
    results = read_results(comparison)
    name = results[0].tracks[0].benchmarks[0]
    shown = held_out_table(comparison, results, name)
    assert [row[0] for row in shown.rows] == ["OAPL", "base"]
    assert {row[shown.columns.index("against OAPL")] for row in shown.rows} == {"–"}
