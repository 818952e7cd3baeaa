"""A whole run in several turns with a tool in the sandbox, on real vLLM and DeepSpeed: killed inside of its
trajectories, continued, and looked at."""

import json
from collections import Counter
from typing import Any

import polars as pl
import pytest

from oapl_core.model_files.model_folder import load_tokenizer, policy_hash
from oapl_core.planning.plan import finished, steps
from oapl_core.run_folder.run import METRICS_FILE, Run
from oapl_core.tables import PROMPTS, ROLLOUTS, read_table
from oapl_core.turns.rows import fault
from tests import sandboxes
from tests.tiny_model import write_tiny_model
from tests.whole_run import kill_when, made_more_than_once, oapl

pytestmark = pytest.mark.slow  # minutes: test_end_to_end is the whole run that is tried by default

PROBLEMS, GROUP = 12, 4
EXPERIMENT = """
name = "tools"
model = "{folder}/model"
runs_dir = "{folder}/runs"
problems = {{train = "{folder}/train.jsonl", heldout = "{folder}/heldout.jsonl", max_prompt_tokens = 96}}
environment = {{function = "tests.played_environments:Rated", turn_tokens = 48}}
engine = {{max_model_len = 256, max_num_seqs = 8, kv_cache_gib = 0.25, dtype = "float32"}}
sampling = {{group_size = {group}, max_tokens = 150, stop = {stop}, problems_per_part = 6, flush_s = 0.02}}
verifier = {{workers = 1, minimum_level = "{level}"}}
training = {{batch_size = 16, tokens_per_micro_batch = 2048, learning_rate = 1e-3, dtype = "float32"}}
rounds = [{{keep = "all"}}]
evaluation = {{heldout_samples = 1, max_tokens = 150}}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("tools")
    write_tiny_model(folder / "model", sharpness=6)
    for split, first, count in (("train", 0, PROBLEMS), ("heldout", PROBLEMS, 2)):
        problems = [
            {"problem_id": f"{split}-{n}", "statement": f"{n} + {n}?", "answer": str(2 * n)}
            for n in range(first, first + count)
        ]
        lines = [json.dumps({"split": split, "kind": "math", **problem}) for problem in problems]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    level = sandboxes.LEVEL or "fallback"
    text = EXPERIMENT.format(folder=folder, group=GROUP, stop=[*"aeinorst ="], level=level)
    (folder / "tools.toml").write_text(text.replace("'", '"'))
    arguments = ["run", str(folder / "tools.toml")]
    root = folder / "runs" / "tools-seed0"
    kill_when(arguments, folder / "killed.log", lambda: any(root.glob("round_00/1_rollouts/.in_flight/*/*.turns")))
    oapl(arguments)
    assert f"each turn of {PROBLEMS * GROUP} rollouts was given exactly what stands before it" in oapl(
        ["check", str(root)]
    )
    return Run.open(root)


def rows(run: Run) -> list[dict[str, Any]]:
    parts = sorted(run.rollouts(0).glob("*.parquet"))
    return [row for part in parts for row in read_table(part, ROLLOUTS).to_pylist()]


def test_every_step_is_finished_and_nothing_was_made_twice(run: Run) -> None:
    assert len(finished(run)) == len(steps(run.config))
    assert made_more_than_once(run) == []


def test_every_trajectory_is_there_once_and_has_what_the_tool_said(run: Run) -> None:
    prompts = {row["problem_id"]: row["prompt_ids"] for row in read_table(run.prompts, PROMPTS).to_pylist()}
    found, tokenizer = rows(run), load_tokenizer(run.base_model())
    counts = Counter((row["problem_id"], row["sample"]) for row in found)
    assert len(counts) == PROBLEMS * GROUP == len(found)
    for row in found:
        assert fault(row, prompts[row["problem_id"]]) is None
        assert row["prompt_hashes"]
    answered = [row for row in found if row["tool_calls"]]
    assert len(answered) > len(found) // 2
    for row in answered:
        (call,) = row["tool_calls"]
        assert (call["name"], call["is_error"]) == ("python", False)
        between = [token for token, own in zip(row["response_ids"], row["loss_mask"], strict=True) if not own]
        # where the last tokens have no room for it, the trajectory ended there
        assert not between or f"tool\n{call['result']}<|im_end|>" in tokenizer.decode(between)


def test_the_environment_judges(run: Run) -> None:
    verdicts = pl.read_parquet(run.verdicts(0) / "*.parquet")
    rewards = {row["rollout_id"]: sum(row["turn_rewards"] or [0.0]) for row in rows(run)}
    assert dict(verdicts.select("rollout_id", "reward").iter_rows()) == rewards
    assert set(rewards.values()) == {0.0, 1.0}


def test_trained_are_the_sampled_tokens_alone_and_engine_and_trainer_agree(run: Run) -> None:
    groups = pl.read_parquet(run.groups(0))
    sampled = int(groups["loss_mask"].list.sum().sum())
    assert sampled < groups["response_ids"].list.len().sum()
    mismatch = run.ledger.artifacts()[run.name(run.checkpoints(0) / "engine_mismatch.parquet")].details
    assert mismatch["tokens"] <= sampled
    assert mismatch["max"] < 1e-4
    metrics = pl.read_ndjson(run.checkpoint(0, 1) / METRICS_FILE)
    assert int(metrics["response_tokens"].sum()) == sampled
    assert policy_hash(run.checkpoint(0, 1)) != policy_hash(run.base_model())
