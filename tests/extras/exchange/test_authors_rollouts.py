"""deployments/experiments/authors-rollouts.toml on rows as the authors' script writes them: their oddities are handled.

Columns, types and packing were read in their repository (the experiment's header names files and commit).
"""

import base64
import json
import os
import pickle
import zlib
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from oapl_core.problems.ground_truth import from_text
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment_file import load_experiment
from oapl_extras.exchange.import_rollouts import import_rollouts
from oapl_extras.exchange.imported_rows import Assumed
from tests.extras.exchange.exchanged import Row
from tests.tiny_model import write_tiny_model
from tests.whole_run import ROOT, called

EXPERIMENT = ROOT / "deployments" / "experiments" / "authors-rollouts.toml"
TESTS = [
    {"input": f"{a} 2\n", "output": f"{a + 2}\n", "testtype": "stdin_stdout", "metadata": {"func_name": None}}
    for a in range(5)
]
CALLS = [{"input": "1\n2", "output": "3", "testtype": "functional", "metadata": {"func_name": "add"}}]
TURN = pa.struct([("content", pa.string()), ("role", pa.string())])
SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(TURN)),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("ground_truth", pa.string()), ("style", pa.string())])),
        ("extra_info", pa.struct([("index", pa.int64()), ("split", pa.string())])),
        ("response", pa.string()),
        ("precomputed_reward", pa.float64()),
        ("response_rewards", pa.list_(pa.float64())),
    ]
)


def packed(tests: Any) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def rows(index: int, words: str, tests: Any, rewards: list[float], cut: int = 0) -> list[Row]:
    """A group; its last ``cut`` responses are as long as the limit."""
    program = "```python\nprint(sum(map(int, input().split())))\n```"
    return [
        {
            "data_source": "/scratch/them/deepcoder/train.parquet",
            "prompt": [{"role": "user", "content": f"You are an expert Python programmer. {words}\n\n"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": packed(tests)},
            "extra_info": {"split": "train", "index": index},
            "response": "la " * 400 if i >= len(rewards) - cut else f"Answer {i} to {words}: {program}",
            "precomputed_reward": reward,
            "response_rewards": rewards,
        }
        for i, reward in enumerate(rewards)
    ]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four groups of four, one of which contradicts itself."""
    wrong = rows(3, "Print nothing.", TESTS, [1.0, 1.0, 0.0, 0.0])
    wrong[0]["precomputed_reward"] = 0.0
    groups = [
        rows(0, "Print the sum.", TESTS, [1.0, 0.0, 0.0, 0.0], cut=1),
        rows(0, "Return the sum.", CALLS, [1.0, 1.0, 0.0, 0.0]),
        rows(2, "Print all.", TESTS, [0.0, 0.0, 0.0, 1.0]),
        wrong,
    ]
    path = tmp_path_factory.mktemp("theirs") / "train.parquet"
    pq.write_table(pa.Table.from_pylist([row for group in groups for row in group], SCHEMA), path)
    return path


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the rehearsal has in place of the paper's model, problems and GPUs."""
    folder = tmp_path_factory.mktemp("rehearsal")
    write_tiny_model(folder / "model", sharpness=10.0)
    for split in ("validation", "heldout"):
        tests = [{"input": test["input"], "output": test["output"]} for test in TESTS]
        problem = {"problem_id": split, "kind": "stdin", "statement": f"Add. {split}", "tests": tests}
        (folder / f"{split}.jsonl").write_text(json.dumps(problem) + "\n")
    values: dict[str, Any] = {
        "runs_dir": folder / "runs",
        "model": folder / "model",
        "problems.train": folder / "validation.jsonl",
        "problems.validation": folder / "validation.jsonl",
        "problems.heldout": folder / "heldout.jsonl",
        "problems.max_prompt_tokens": 1024,
        "sampling.max_tokens": 300,
        "sampling.group_size": 4,
        "engine.max_model_len": 1400,
        "engine.kv_cache_gib": 0.25,
        "engine.replicas": 1,
        "engine.dtype": "float32",
        "engine.enforce_eager": "true",
        "evaluation.max_tokens": 16,
        "evaluation.heldout_samples": 2,
        "evaluation.validation_samples": 2,
        "evaluation.bootstrap_resamples": 100,
        "training.processes": 1,
        "training.zero_stage": 1,
        "training.dtype": "float32",
        "training.recompute": '"none"',
        "training.batch_size": 4,
        "training.tokens_per_micro_batch": 2048,
        "training.learning_rate": 1e-3,
    }
    return [f"{key}={value}" for key, value in values.items()]


def imported(theirs: Path, changed: list[str], name: str, assumed: Assumed) -> Run:
    run = Run.create(load_experiment(EXPERIMENT, [*changed, f"name={name}"]))
    import_rollouts(run, 0, theirs, assumed=assumed)
    assert run.ledger.artifacts()["round_00/2_verdicts/part-00000.parquet"].details["left_out"] == {
        "rewards_disagree": 4
    }
    return run


def test_rows_are_read_as_they_were_made(theirs: Path, changed: list[str]) -> None:
    run = imported(theirs, changed, "read", Assumed(0.6))
    rollouts = pl.read_parquet(run.rollouts(0) / "*.parquet")
    assert rollouts["temperature"].unique().to_list() == pytest.approx([0.6])
    assert rollouts["top_p"].unique().to_list() == [None]
    tokenizer = AutoTokenizer.from_pretrained(run.base_model())
    assert not any(tokenizer.eos_token_id in ids for ids in rollouts["response_ids"]), "as their trainer encodes them"
    problems = {row["statement"]: row for row in pl.read_parquet(run.problems).filter(split="train").to_dicts()}
    kinds = {words.split(". ")[1].strip(): row["kind"] for words, row in problems.items()}
    assert kinds == {"Print the sum.": "stdin", "Return the sum.": "function", "Print all.": "stdin"}
    (called_one,) = (row for row in problems.values() if row["kind"] == "function")
    assert (called_one["entry_point"], called_one["tests"]) == ("add", [{"input": "[1, 2]", "output": "3"}])


def test_end_tokens_are_added_where_nothing_was_cut(theirs: Path, changed: list[str]) -> None:
    run = imported(theirs, changed, "ended", Assumed(0.6, end_token=True))
    rollouts = pl.read_parquet(run.rollouts(0) / "*.parquet")
    end = AutoTokenizer.from_pretrained(run.base_model()).eos_token_id
    ended = {row["text"]: row["response_ids"][-1] == end for row in rollouts.to_dicts()}
    assert len(ended) == 12
    assert [text[:5] for text, has in ended.items() if not has] == ["la la"]


def test_a_pickle_that_is_more_than_a_text_is_not_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    trap = base64.b64encode(zlib.compress(pickle.dumps(Trap()))).decode()
    assert from_text(trap)["tests"] == []
    assert not (tmp_path / "sprung").exists()


@pytest.mark.slow
def test_the_experiment_filters_trains_and_evaluates_without_sampling(theirs: Path, changed: list[str]) -> None:
    options = ("source.temperature=0.6", *changed, "name=whole")
    done = called("import", theirs, EXPERIMENT, *options)
    assert done.returncode == 0, done.stderr
    assert "imported 12 of 16 rows as 3 groups; left out: 4 rewards_disagree" in done.stdout
    run = Run.open(load_experiment(EXPERIMENT, [*changed, "name=whole"]).run_dir)
    sampled = {path: path.read_bytes() for path in run.rollouts(0).glob("*.parquet")}
    done = called("run", EXPERIMENT, *changed, "name=whole")
    assert done.returncode == 0, done.stderr
    assert {path: path.read_bytes() for path in run.rollouts(0).glob("*.parquet")} == sampled
    groups = pl.read_parquet(run.groups(0))
    assert len(groups) == 12
    assert groups["temperature"].unique().to_list() == pytest.approx([0.6])
    steps = [json.loads(line) for line in (run.checkpoint(0, 1) / "training_metrics.jsonl").read_text().splitlines()]
    assert len(steps) == 3
    assert abs(steps[0]["log_ratio"]) < 1e-4, "the reference is of the weights that it starts from, at one temperature"
    assert (run.report / "index.html").exists()
    assert set(pl.read_parquet(run.evaluation())["split"]) == {"validation", "heldout"}
