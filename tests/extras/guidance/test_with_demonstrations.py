"""Demonstrations among the rows of a group: which they are, how they are judged, resumed, trained and refused."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oapl_core import tables
from oapl_core.errors import ConfigError, DataError
from oapl_core.groups.build import build
from oapl_core.model_files.model_folder import load_tokenizer, policy_hash
from oapl_core.rollouts.generate import generate
from oapl_core.run_folder.opening import check
from oapl_core.run_folder.run import METRICS_FILE, Run
from oapl_core.settings.rehearsal import rehearsal
from oapl_core.verdicts.verify import verify
from tests.core.rollouts.slow_sampling import COMMAND
from tests.core.rollouts.test_killed import REPLICAS, Stage, conclude, content, disturb
from tests.core.training.made_round import TRAINING, plain_logprobs, train_in_a_process
from tests.extras.guidance.guided_run import GROUP, MOST_TOKENS, PROBLEMS, guided_run, worked, write_rows
from tests.lasting_maths import lasting_maths as lasting_maths
from tests.sampling_run import MadeUpSampler
from tests.tiny_model import write_tiny_model

pytestmark = pytest.mark.usefixtures("lasting_maths")

SHOWN = [worked(0), worked(1), worked(1, "Again. "), worked(3)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), sharpness=3.0)


def shown_run(folder: Path, model: Path, rows: list[dict[str, Any]] = SHOWN, per_group: int = 1, **changes: Any) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    file = write_rows(folder / "worked.jsonl", rows)
    return guided_run(folder, model, {"with_demonstrations": str(file), "per_group": per_group}, **changes)


def rollouts(run: Run) -> list[dict[str, Any]]:
    parts = sorted(run.rollouts(0).glob("part-*.parquet"))
    return [row for part in parts for row in tables.read_table(part, tables.ROLLOUTS).to_pylist()]


def is_shown(row: dict[str, Any]) -> bool:
    return bool(row["engine"] == "demonstration worked.jsonl")


def test_the_last_rows_of_a_group_are_its_demonstrations_and_the_rest_is_sampled_as_ever(
    tmp_path: Path, model: Path
) -> None:
    run = shown_run(tmp_path / "shown", model, per_group=2)
    generate(run, 0, MadeUpSampler)
    plain = guided_run(tmp_path / "plain", model, {}, rounds=[{}])
    generate(plain, 0, MadeUpSampler)
    found, expected = rollouts(run), rollouts(plain)
    assert [(r["problem_id"], r["sample"]) for r in found if is_shown(r)] == [
        *[("sum-0", 2), ("sum-1", 2), ("sum-1", 3), ("sum-3", 2)]
    ]
    assert len(found) == PROBLEMS * GROUP
    apart = ("run", "sampled_at")
    for mine, theirs in zip(found, expected, strict=True):
        if not is_shown(mine):
            assert {k: v for k, v in mine.items() if k not in apart} == {
                k: v for k, v in theirs.items() if k not in apart
            }


def test_a_row_says_that_it_is_one_and_is_encoded_as_an_answer(tmp_path: Path, model: Path) -> None:
    run = shown_run(tmp_path, model)
    generate(run, 0, MadeUpSampler)
    tokenizer = load_tokenizer(model)
    shown = [row for row in rollouts(run) if is_shown(row)]
    assert [row["text"] for row in shown] == [SHOWN[0]["solution"], SHOWN[1]["solution"], SHOWN[3]["solution"]]
    for row in shown:
        assert tokenizer.decode(row["response_ids"]) == f"{row['text']}<|im_end|>"
        assert (row["finish_reason"], row["logprobs_mode"], row["temperature"]) == ("stop", "unknown", 1.0)
        assert [row[name] for name in ("logprobs", "seed", "sampled_at", "loss_mask")] == [None] * 4
        assert row["policy_hash"] == policy_hash(model), "the policy whose group it is in"


def judged(run: Run) -> list[dict[str, Any]]:
    generate(run, 0, MadeUpSampler)
    verify(run, 0)
    build(run, 0)
    rows: list[dict[str, Any]] = tables.read_table(run.groups(0), tables.GROUPS).to_pylist()
    return rows


def test_they_are_judged_as_the_others_and_their_groups_are_whole(tmp_path: Path, model: Path) -> None:
    """Nothing that the made-up sampler says is right: a demonstration keeps its group, and a wrong one does not."""
    wrong = {"problem_id": "sum-3", "solution": "The answer is \\boxed{1}."}
    rows = judged(shown_run(tmp_path, model, [worked(0), worked(1), wrong]))
    assert [(row["problem_id"], row["reward"], row["behavior_logprobs"] is None) for row in rows] == [
        (f"sum-{problem}", float(shown), shown) for problem in (0, 1) for shown in (False, False, False, True)
    ]
    assert len({row["policy_hash"] for row in rows}) == 1
    assert [row["group"] for row in rows] == [0] * GROUP + [1] * GROUP


def test_what_cannot_be_used_is_counted_and_leaves_its_place_to_a_sampled_answer(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    foreign = {"statement": "What is 7 + 7?", "solution": "14"}
    asked = [{"role": "user", "content": "Other words."}, {"role": "assistant", "content": "3"}]
    rows = [worked(0, "word " * 40), worked(90), foreign, {"problem_id": "sum-1", "messages": asked}, worked(2)]
    run = shown_run(tmp_path, model, rows)
    generate(run, 0, MadeUpSampler)
    assert [row["problem_id"] for row in rollouts(run) if is_shown(row)] == ["sum-2"]
    assert len(rollouts(run)) == PROBLEMS * GROUP
    said = capsys.readouterr().out
    assert "round 0: 1 demonstrations of 1 problems; dropped: " in said
    for why in (
        f"1 with an answer longer than {MOST_TOKENS} tokens",
        "1 of a validation or held-out problem",
        "1 without the `problem_id` of a training problem",
        "1 asked otherwise than the run asks",
    ):
        assert why in said


def test_a_broken_sampler_is_continued_and_another_file_samples_anew(tmp_path: Path, model: Path) -> None:
    run, whole = (shown_run(tmp_path / name, model) for name in ("broken", "whole"))
    generate(whole, 0, MadeUpSampler)
    with pytest.raises(InterruptedError):
        generate(run, 0, lambda folder, config: MadeUpSampler(folder, config, stop_after=9))
    generate(run, 0, MadeUpSampler)
    assert content(run) == content(whole)
    write_rows(tmp_path / "broken/worked.jsonl", [worked(5)])
    generate(run, 0, MadeUpSampler)
    assert [row["problem_id"] for row in rollouts(run) if is_shown(row)] == ["sum-5"]


@pytest.mark.slow
def test_killed_at_random_moments_each_answer_is_there_once(
    tmp_path: Path, model: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shown_run(tmp_path / "killed", model, engine={"replicas": REPLICAS})
    monkeypatch.setenv("OAPL_TEST_ANSWER_S", "0.3")
    stage = Stage(COMMAND, run, root)
    killed = disturb(stage, 3, longest_s=2.5)
    assert killed.total() == 3
    monkeypatch.setenv("OAPL_TEST_ANSWER_S", "0")
    conclude(stage, run)
    whole = shown_run(tmp_path / "whole", model)
    generate(whole, 0, MadeUpSampler)
    assert content(run) == content(whole)


def train_on(folder: Path, model: Path, training: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any], Run]:
    """Rows of a mixed group whose own answers have the model's log-probs, and the first step on all of them."""
    run = shown_run(folder, model, training=TRAINING | {"batch_size": 64} | training)
    rows, draw = judged(run), random.Random(5)
    scored = iter(plain_logprobs(model, [row for row in rows if row["behavior_logprobs"]]))
    for row in rows:
        if row["behavior_logprobs"]:
            row["behavior_logprobs"] = next(scored)
            row["reward"] = draw.choice((0.0, 0.25))
    entry = run.ledger.artifacts()[run.name(run.groups(0))]
    with run.writing(run.groups(0), entry.inputs, {}) as draft:
        draft.rows, draft.details = tables.write_table(draft.path, tables.GROUPS, rows), dict(entry.details)
    train_in_a_process(run)
    metrics = (run.checkpoint(0, 1) / METRICS_FILE).read_text().splitlines()
    return rows, json.loads(metrics[0]), run


@pytest.mark.parametrize("reference", ["behavior", pytest.param("reference", marks=pytest.mark.slow)])
def test_a_step_has_the_loss_that_is_computed_row_by_row(tmp_path: Path, model: Path, reference: str) -> None:
    """Own rows at pi = b have ratio 1; a demonstration's tokens have pi / (pi + 0.1), whoever scored it before."""
    rows, step, run = train_on(tmp_path, model, {"reference": reference})
    every, total = plain_logprobs(model, rows), 0.0
    for row, logprobs in zip(rows, every, strict=True):
        rewards = [one["reward"] for one in rows if one["group"] == row["group"]]
        advantage = row["reward"] - sum(rewards) / len(rewards)
        shaped = [math.exp(x) / (math.exp(x) + 0.1) for x in logprobs]
        total -= advantage * (len(logprobs) if row["behavior_logprobs"] else sum(shaped))
    assert step["loss"] == pytest.approx(total / len(rows), rel=1e-5)
    assert (step["sequences"], step["skipped"]) == (len(rows), False)
    if reference == "behavior":
        measured = tables.read_table(run.mismatch(0), tables.MISMATCHES).to_pylist()
        assert {one["rollout_id"] for one in measured} == {r["rollout_id"] for r in rows if r["behavior_logprobs"]}
        assert step["log_ratio"] is None, "not every row has a b"


@pytest.mark.parametrize(
    ("rows", "changes", "why"),
    [
        ({"per_group": 4}, {}, r"rounds\[0\].rows.per_group = 4 leaves none of sampling.group_size = 4 to sample"),
        ({}, {"objective": {"name": "oapl"}}, "objective 'oapl' compares every answer of a group with the policy that"),
        ({}, {"objective": {"name": "luffy", "start_anchor": {}}}, "objective 'luffy' compares every answer"),
        ({}, {"environment": {"function": "calculator"}}, r"\[environment\] exclude each other"),
        ({}, {"sampling": {"stop": ["###"], "stop_tokens": "cut"}}, "stop_tokens = 'cut' exclude each other"),
        ({}, {"sampling": {"routes": True}}, "sampling.routes = true exclude each other"),
        ({"files": "none.jsonl"}, {}, "none.jsonl is not a file"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(
    tmp_path: Path, model: Path, rows: dict[str, Any], changes: dict[str, Any], why: str
) -> None:
    file = rows.pop("files", None) or str(write_rows(tmp_path / "worked.jsonl", SHOWN))
    with pytest.raises(ConfigError, match=why) as refused:
        check(guided_run(tmp_path, model, {"with_demonstrations": file, **rows}, **changes).config)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ([{"draw": "difficulty", "problems": 3}], "draw = 'difficulty' exclude each other"),
        ([{"replay": {"rounds": 1}}], "rounds.replay exclude each other: demonstrations have no log-probs"),
    ],
)
def test_other_rounds_that_would_read_its_rows_are_refused(
    tmp_path: Path, model: Path, others: list[dict[str, Any]], why: str
) -> None:
    file = str(write_rows(tmp_path / "worked.jsonl", SHOWN))
    with pytest.raises(ConfigError, match=why):
        guided_run(tmp_path, model, {}, rounds=[{"rows": {"with_demonstrations": file}}, *others])


def test_a_wrong_row_is_one_line_with_its_place(tmp_path: Path, model: Path) -> None:
    run = shown_run(tmp_path, model, [worked(0), {"problem_id": "sum-1"}])
    with pytest.raises(DataError, match=r"worked.jsonl.*2.*write `messages`, or a `solution`"):
        generate(run, 0, MadeUpSampler)


def test_it_can_be_rehearsed(tmp_path: Path, model: Path) -> None:
    run = shown_run(tmp_path, model)
    assert rehearsal(run.config, 4).rounds[0].source == run.config.rounds[0].source


@pytest.mark.slow
def test_a_round_of_demonstrations_alone_has_nothing_for_it(tmp_path: Path, model: Path) -> None:
    from oapl_core.problems.demonstrate import demonstrate

    file = str(write_rows(tmp_path / "worked.jsonl", SHOWN))
    alone: Callable[..., Run] = guided_run
    run = alone(tmp_path, model, {}, rounds=[{"rows": {"demonstrations": file}, "objective": {"name": "luffy"}}])
    demonstrate(run, 0)
    with pytest.raises(AssertionError, match="has no group of two rows or more, and the objective luffy trains on"):
        train_in_a_process(run)


def test_an_objective_of_ones_own_that_compares_with_b_is_refused_before_anything_is_sampled(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from oapl_core.objectives import Oapl\n\n\nclass Mine(Oapl):\n    pass\n"
    (tmp_path / "compares.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    run = shown_run(tmp_path, model, objective={"name": "compares:Mine"})
    with pytest.raises(ConfigError, match="compares every answer with the policy that sampled it"):
        generate(run, 0, MadeUpSampler)
    assert not list(run.rollouts(0).glob("part-*.parquet"))
