"""Pipelined rounds on the real engine and the real trainer: vLLM samples round 1 while DeepSpeed trains round 0."""

import json
from datetime import datetime, timedelta

import polars as pl
import pytest

from oapl_core.model_files.model_folder import policy_hash
from oapl_core.planning.plan import finished, steps
from oapl_core.run_folder.run import Run
from tests.tiny_model import write_tiny_model
from tests.whole_run import DEMO, made_more_than_once, oapl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EXPERIMENT = """
name = "ahead"
model = "{folder}/model"
runs_dir = "{folder}"
cache_dir = "{folder}/cache"
[problems]
train = "{folder}/train.jsonl"
validation = "{folder}/validation.jsonl"
heldout = "{folder}/heldout.jsonl"
prompt_style = "plain"
max_prompt_tokens = 600
[engine]
max_model_len = 640
kv_cache_gib = 0.25
dtype = "float32"
[sampling]
group_size = 2
max_tokens = 24
[training]
batch_size = 8
tokens_per_micro_batch = 4096
dtype = "float32"
[pipeline]
[[rounds]]
keep = "all"
epochs = 2
[[rounds]]
keep = "all"
[[rounds]]
keep = "all"
[evaluation]
validation_samples = 1
heldout_samples = 1
max_tokens = 24
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of three rounds; what it learns does not matter."""
    folder = tmp_path_factory.mktemp("ahead")
    write_tiny_model(folder / "model")
    for split, rows in {"train": 16, "validation": 2, "heldout": 2}.items():
        lines = (DEMO / f"{split}.jsonl").read_text().splitlines()[:rows]
        (folder / f"{split}.jsonl").write_text("".join(line + "\n" for line in lines))
    (folder / "ahead.toml").write_text(EXPERIMENT.format(folder=folder))
    oapl(["run", str(folder / "ahead.toml")])
    return Run.open(folder / "ahead-seed0")


def interval(run: Run, stage: str) -> tuple[datetime, datetime]:
    """From when to when the stage's first process ran."""
    lines = [json.loads(line) for line in run.ledger.path.read_text().splitlines()]
    entry = next(line for line in lines if line["kind"] == "stage" and line["stage"] == stage)
    end = datetime.fromisoformat(entry["at"])
    return end - timedelta(seconds=entry["seconds"]), end


def test_the_engine_samples_a_round_while_the_trainer_trains_the_one_before(run: Run) -> None:
    assert finished(run) == list(steps(run.config))
    assert made_more_than_once(run) == []
    for number in (0, 1):
        training, ahead = (
            interval(run, f"training.train round {number}"),
            interval(run, f"rollouts.generate round {number + 1}"),
        )
        assert max(training[0], ahead[0]) < min(training[1], ahead[1]), "they ran at the same time"


def test_each_round_says_who_sampled_it_and_how_far_behind_that_is(run: Run) -> None:
    base, first = policy_hash(run.base_model()), policy_hash(run.checkpoint(0, 2))
    sampled = [pl.read_parquet(run.rollouts(number) / "*.parquet")["policy_hash"].unique() for number in range(3)]
    assert [hashes.to_list() for hashes in sampled] == [[base], [base], [first]]
    artifacts = run.ledger.artifacts()
    details = [artifacts[run.name(run.checkpoint(number, 1))].details for number in range(3)]
    assert [entry["lag"] for entry in details] == [0, 1, 1]
    steps_of_round_0 = 2 * 16 * 2 // 8
    assert [entry["policy_lag"][0] for entry in details[:2]] == [0, steps_of_round_0]
