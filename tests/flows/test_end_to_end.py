"""The whole loop on real vLLM, sandbox and DeepSpeed, scaled down: killed in the middle, continued, and looked at."""

import json
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from oapl_core.model_files.model_folder import policy_hash
from oapl_core.planning.plan import finished, steps
from oapl_core.run_folder.run import Run
from oapl_core.tables import ROLLOUTS
from tests.whole_run import kill_when, made_more_than_once, oapl, small_demo

TRAIN_PROBLEMS, SECOND_ROUND, GROUP_SIZE = 32, 16, 4
PARTS = 8
SOLUTIONS = 48
HELD_OUT = 8


@dataclass(frozen=True)
class Story:
    """What the commands left behind."""

    run: Run
    arguments: list[str]
    first_part_ns: int
    """When the part that was finished before the kill was written."""
    said: str
    said_when_done: str
    ledger_when_done: bytes


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("end-to-end")
    changes = [
        "pretrain.epochs=5",  # enough for a third of right answers
        f"sampling.problems_per_part={TRAIN_PROBLEMS // PARTS}",
        f"rounds.1.problems={SECOND_ROUND}",
        f"mirror=file://{folder}/mirror",
    ]
    arguments = ["run", *small_demo(folder, TRAIN_PROBLEMS, HELD_OUT, HELD_OUT, SOLUTIONS), *changes]
    root = folder / "runs" / "demo-seed0"
    parts = root / "round_00" / "1_rollouts"
    kill_when(arguments, folder / "killed.log", (parts / "part-00000.parquet").exists)
    assert len(list(parts.glob("*.parquet"))) < PARTS, "killed in the middle"
    first_part_ns = (parts / "part-00000.parquet").stat().st_mtime_ns
    said = oapl(arguments)
    ledger = (root / "ledger.jsonl").read_bytes()
    return Story(Run.open(root), arguments, first_part_ns, said, oapl(arguments), ledger)


def rollouts(story: Story, number: int) -> pl.DataFrame:
    return pl.read_parquet(story.run.rollouts(number) / "*.parquet")


def test_every_step_is_finished_and_nothing_was_made_twice(story: Story) -> None:
    assert len(finished(story.run)) == len(steps(story.run.config))
    assert made_more_than_once(story.run) == []


def test_what_was_written_before_the_kill_was_kept(story: Story) -> None:
    assert "steps are finished, continuing" in story.said
    assert (story.run.rollouts(0) / "part-00000.parquet").stat().st_mtime_ns == story.first_part_ns


@pytest.mark.parametrize(("number", "problems"), [(0, TRAIN_PROBLEMS), (1, SECOND_ROUND)])
def test_each_problem_has_each_sample_exactly_once(story: Story, number: int, problems: int) -> None:
    found = rollouts(story, number)
    assert tuple(found.columns) == tuple(name for name, _ in ROLLOUTS)
    counts = Counter(found.select("problem_id", "sample").iter_rows())
    assert set(counts.values()) == {1}
    assert len(counts) == problems * GROUP_SIZE
    assert set(found["sample"]) == set(range(GROUP_SIZE))


def test_every_rollout_has_a_verdict_and_none_is_a_verifier_error(story: Story) -> None:
    for number in range(2):
        verdicts = pl.read_parquet(story.run.verdicts(number) / "*.parquet")
        assert sorted(verdicts["rollout_id"]) == sorted(rollouts(story, number)["rollout_id"])
        assert verdicts["reward"].null_count() == 0
        assert set(verdicts["reward"]) == {0.0, 1.0}, "the base gives right and wrong answers"


def test_the_second_round_samples_with_what_the_first_one_trained(story: Story) -> None:
    trained = policy_hash(story.run.checkpoint(0, 1))
    assert trained != policy_hash(story.run.base_model())
    assert set(rollouts(story, 1)["policy_hash"]) == {trained}


def test_the_trainer_scores_answers_as_the_engine_did_when_it_sampled_them(story: Story) -> None:
    for number in range(2):
        metrics = (story.run.checkpoint(number, 1) / "training_metrics.jsonl").read_text().splitlines()
        assert json.loads(metrics[0])["token_log_ratio_max"] < 1e-4, "before the first step the policy is what sampled"


def test_an_exported_checkpoint_loads_with_plain_transformers(story: Story) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = story.run.checkpoint(1, 2)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    turn = [{"role": "user", "content": "Write solve(a) for a list of integers:\n    return the list"}]
    prompt = tokenizer.apply_chat_template(turn, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = model.generate(**prompt, max_new_tokens=4, do_sample=False)
    assert ids.shape[1] > prompt["input_ids"].shape[1]


def test_the_report_says_what_was_measured(story: Story) -> None:
    assert "Held-out pass@1" in story.said
    report = (story.run.report / "report.md").read_text()
    assert "Pass rates of held-out problems" in report
    assert {p.name for p in story.run.report.glob("*.png")} == {
        "pass_at_k.png",
        "samples_spent.png",
        "training.png",
        "dropped.png",
    }


def test_a_finished_run_says_so_and_starts_nothing(story: Story) -> None:
    assert "every step is finished, nothing to do" in story.said_when_done
    assert (story.run.root / "ledger.jsonl").read_bytes() == story.ledger_when_done
    assert Path(story.run.report / "index.html").is_file()


def test_a_run_that_is_lost_with_its_base_model_comes_back_from_its_mirror(story: Story) -> None:
    base, policy = story.run.base_model(), policy_hash(story.run.base_model())
    shutil.rmtree(story.run.root)
    shutil.rmtree(base.parent)
    said = oapl(story.arguments)
    assert "fetched; `oapl run`" in said
    assert "every step is finished, nothing to do" in said
    assert (story.run.root / "ledger.jsonl").read_bytes() == story.ledger_when_done
    assert policy_hash(story.run.base_model()) == policy
    assert "are what was recorded" in oapl(["check", str(story.run.root)])
