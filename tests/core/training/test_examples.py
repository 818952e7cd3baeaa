"""Reading groups: rows come back as stored; what does not belong is refused before anything heavy starts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from oapl_core.errors import DataError
from oapl_core.model_files.model_folder import limits, policy_hash
from oapl_core.training.examples import Examples, read_examples
from oapl_core.training.train import train
from tests.core.training.made_round import made_groups, make_run, write_groups
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def rows(model_dir: Path) -> list[dict[str, Any]]:
    return made_groups(model_dir, groups=3)


def read(folder: Path, model_dir: Path, rows: list[dict[str, Any]]) -> Examples:
    run = make_run(folder, model_dir)
    write_groups(run, rows)
    return read_examples(run.groups(0), policy_hash(model_dir), model_dir)


def test_a_micro_batch_holds_each_rows_tokens_where_their_log_probs_are(
    tmp_path: Path, model_dir: Path, rows: list[dict[str, Any]]
) -> None:
    examples = read(tmp_path, model_dir, rows)
    chosen = [7, 0, 11]
    batch = examples.batch(chosen)
    assert batch.id_ST.shape[1] == max(examples.lengths[i] for i in chosen)
    assert batch.compared_ST.shape == (3, batch.id_ST.shape[1] - 1)
    for s, i in enumerate(chosen):
        whole, start = rows[i]["prompt_ids"] + rows[i]["response_ids"], len(rows[i]["prompt_ids"])
        assert batch.id_ST[s, : len(whole)].tolist() == whole
        assert (int(batch.prompt_length_S[s]), int(batch.length_S[s])) == (start, len(whole))
        assert batch.compared_ST[s, start - 1 : len(whole) - 1].tolist() == pytest.approx(rows[i]["behavior_logprobs"])
        assert int((batch.compared_ST[s] != 0).sum()) == len(rows[i]["response_ids"])


def test_no_rows_make_a_stand_in_without_weight(tmp_path: Path, model_dir: Path, rows: list[dict[str, Any]]) -> None:
    batch = read(tmp_path, model_dir, rows).batch([])
    assert (batch.weight, batch.id_ST.shape) == (0.0, (1, 2))


def test_rollouts_of_another_policy_are_refused_naming_both(
    tmp_path: Path, model_dir: Path, rows: list[dict[str, Any]]
) -> None:
    run = make_run(tmp_path, model_dir)
    write_groups(run, [row | {"policy_hash": "0123456789abcdef"} for row in rows])
    with pytest.raises(DataError, match=f"policy 0123456789abcdef, but the round's policy is {policy_hash(model_dir)}"):
        train(run, 0)


def broken(rows: list[dict[str, Any]], row: int, **changes: Any) -> list[dict[str, Any]]:
    return [r | changes if i == row else r for i, r in enumerate(rows)]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"response_ids": [5] * 2100, "behavior_logprobs": [-1.0] * 2100},
            "r1-1 is longer than the model's 2048 positions",
        ),
        ({"behavior_logprobs": [-1.0]}, "r1-1 has not one log-prob for each response token"),
        ({"response_ids": [], "behavior_logprobs": []}, "r1-1 has an empty prompt or response"),
        ({"response_ids": [5, 99999], "behavior_logprobs": [-1.0, -1.0]}, r"r1-1 has a token outside the \d+"),
        ({"response_ids": [5, -1], "behavior_logprobs": [-1.0, -1.0]}, r"r1-1 has a token outside the \d+"),
        ({"response_ids": [5], "behavior_logprobs": [float("-inf")]}, "r1-1 has a log-prob that is not finite"),
        ({"reward": float("nan")}, "r1-1 has a reward that is not finite"),
        ({"temperature": 0.5}, "temperatures"),
    ],
)
def test_damaged_rows_are_refused_by_name(
    tmp_path: Path, model_dir: Path, rows: list[dict[str, Any]], changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint):
        read(tmp_path, model_dir, broken(rows, 5, **changes))


def test_an_empty_groups_file_is_refused(tmp_path: Path, model_dir: Path) -> None:
    with pytest.raises(DataError, match="has no group to train on"):
        read(tmp_path, model_dir, [])


def test_a_torn_groups_file_is_refused(tmp_path: Path, model_dir: Path, rows: list[dict[str, Any]]) -> None:
    run = make_run(tmp_path, model_dir)
    write_groups(run, rows)
    whole = run.groups(0).read_bytes()
    run.groups(0).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        train(run, 0)


def test_a_missing_groups_file_is_refused(tmp_path: Path, model_dir: Path) -> None:
    with pytest.raises(DataError, match="3_groups.parquet: is missing"):
        train(make_run(tmp_path, model_dir), 0)


def test_a_round_that_the_experiment_lacks_is_refused(tmp_path: Path, model_dir: Path) -> None:
    with pytest.raises(DataError, match=r"rounds 0\.\.0"):
        train(make_run(tmp_path, model_dir), 3)


@pytest.mark.parametrize("scaling", [{"rope_type": "linear", "factor": 4.0}, {"type": "dynamic", "factor": 4.0}])
def test_a_stretched_model_reads_as_far_as_its_scaling_says(
    tmp_path: Path, model_dir: Path, scaling: dict[str, Any]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_dir, folder)
    config = json.loads((folder / "config.json").read_text())
    length = config["max_position_embeddings"]
    assert limits(folder)[0] == length
    (folder / "config.json").write_text(json.dumps(config | {"rope_scaling": scaling, "rope_parameters": None}))
    assert limits(folder)[0] == 4 * length
