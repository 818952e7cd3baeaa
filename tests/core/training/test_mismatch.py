"""What the check before the first update finds: tampered numbers, another checkpoint, tokens that text cannot keep."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from oapl_core import tables
from oapl_core.errors import StageFailed
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.run_folder.run import Run
from oapl_core.training.examples import read_examples
from oapl_core.training.job import make_job
from oapl_core.training.mismatch import chosen, compare_with_engine, first_drifts, judge
from oapl_core.training.model.logprobs import Policy
from tests.core.training.made_round import made_groups, make_run, plain_logprobs, write_groups
from tests.core.training.plain_engine import PlainEngine
from tests.tiny_model import write_tiny_model

Row = dict[str, Any]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), sharpness=3.0)


@pytest.fixture(scope="module")
def rows(model_dir: Path) -> list[Row]:
    return made_groups(model_dir)


class CountingEngine(PlainEngine):
    """Counts its forward passes."""

    forwards = 0

    def __call__(self, *inputs: Any, last: bool) -> Any:
        self.forwards += 1
        return super().__call__(*inputs, last=last)

    def wait(self) -> None:
        """There is one rank."""


def check(run: Run, model_dir: Path) -> CountingEngine:
    examples = read_examples(run.groups(0), policy_hash(model_dir), model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=getattr(torch, run.config.training.dtype))
    engine = CountingEngine(Policy(model), run.config.training)
    compare_with_engine(make_job(run, 0), engine, examples)
    return engine


def measured(run: Run) -> tuple[list[Row], dict[str, Any]]:
    """The rows of the file, and the ledger's sums."""
    path = run.mismatch(0)
    return tables.read_table(path, tables.MISMATCHES).to_pylist(), dict(run.ledger.artifacts()[run.name(path)].details)


def prepared(folder: Path, model_dir: Path, rows: list[Row], **training: Any) -> Run:
    run = make_run(folder, model_dir, **training)
    write_groups(run, rows)
    return run


def test_the_same_weights_differ_by_rounding_alone(tmp_path: Path, model_dir: Path, rows: list[Row]) -> None:
    run = prepared(tmp_path, model_dir, rows)
    check(run, model_dir)
    lines, details = measured(run)
    assert [line["rollout_id"] for line in lines] == [row["rollout_id"] for row in rows]
    assert [line["response_tokens"] for line in lines] == [len(row["response_ids"]) for row in rows]
    assert details["max"] < 1e-4
    assert (details["sequences"], details["share"]) == (24, 1.0)
    assert details["tokens"] == sum(len(row["response_ids"]) for row in rows)


def test_one_tampered_log_prob_is_found_with_its_size(tmp_path: Path, model_dir: Path, rows: list[Row]) -> None:
    """Two nats too high: the trainer's ln p is 2 lower, so d = -2 for one token of one rollout."""
    tampered = [dict(row) for row in rows]
    victim = tampered[7]
    victim["behavior_logprobs"] = [victim["behavior_logprobs"][0] + 2.0, *victim["behavior_logprobs"][1:]]
    run = prepared(tmp_path, model_dir, tampered, max_mismatch=1.0)
    check(run, model_dir)
    lines, details = measured(run)
    length, tokens = len(victim["response_ids"]), details["tokens"]
    worst = lines[7]
    assert details["worst"] == worst["rollout_id"] == victim["rollout_id"]
    assert worst["max_difference"] == pytest.approx(2.0, abs=1e-4)
    assert worst["mean_difference"] == pytest.approx(2.0 / length, abs=1e-4)
    assert worst["sum_difference"] == pytest.approx(-2.0, abs=1e-3)
    k3 = math.exp(-2.0) + 2.0 - 1.0
    assert worst["k3"] == pytest.approx(k3 / length, rel=1e-3)
    assert details["mean"] == pytest.approx(2.0 / tokens, rel=0.05)
    assert details["max"] == pytest.approx(2.0, abs=1e-4)
    assert details["k3"] == pytest.approx(k3 / tokens, rel=1e-3)
    assert details["sequence_sum_mean"] == pytest.approx(-2.0 / len(rows), rel=1e-2)
    assert details["sequence_sum_max"] == pytest.approx(2.0, abs=1e-3)
    assert sum(line["max_difference"] > 1e-3 for line in lines) == 1


def test_another_checkpoint_under_the_right_name_fails_the_stage(
    tmp_path: Path, model_dir: Path, rows: list[Row]
) -> None:
    """The rows claim this policy, as if its weights had been swapped while sampling: only the numbers tell."""
    other = write_tiny_model(tmp_path / "other", seed=1, sharpness=3.0)
    run = prepared(tmp_path, other, [row | {"policy_hash": policy_hash(other)} for row in rows])
    with pytest.raises(StageFailed, match=r"differ by .* nats per token over 24 rollouts .*max_mismatch allows"):
        check(run, other)
    lines, details = measured(run)
    assert len(lines) == 24, "the evidence is kept"
    assert details["mean"] > 0.2


def _int4(weight: torch.Tensor) -> torch.Tensor:
    """Rounded to 15 steps for each 32 numbers of a row, as quantised engines do."""
    blocks = weight.reshape(-1, 32)
    step = blocks.abs().amax(1, keepdim=True) / 7
    return ((blocks / step).round() * step).reshape(weight.shape)


def _of_another_round(weight: torch.Tensor) -> torch.Tensor:
    return weight + 0.2 * weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))


WRONG = {"int4 weights": ("layers", _int4), "a round old": ("layers", _of_another_round)}
WRONG |= {"stale output layer": ("lm_head", _of_another_round)}


@pytest.fixture(scope="module")
def untied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Row]]:
    folder = write_tiny_model(tmp_path_factory.mktemp("untied"), sharpness=3.0, tied=False)
    return folder, made_groups(folder)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("engine", ["float32", "bfloat16", *WRONG])
def test_rounding_passes_and_an_engine_with_other_weights_does_not(
    engine: str, dtype: str, tmp_path: Path, untied: tuple[Path, list[Row]]
) -> None:
    """What an engine would have recorded, against a trainer in both types; the bound is measured, not given."""
    (model_dir, rows), folder = untied, tmp_path / "engine"
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    if engine in WRONG:
        place, change = WRONG[engine]
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if place in name and weight.ndim == 2:
                    weight.copy_(change(weight))
    model.save_pretrained(folder)
    loading = {"dtype": torch.bfloat16} if engine == "bfloat16" else {}
    recorded = plain_logprobs(folder, rows, **loading)
    told = [row | {"behavior_logprobs": numbers} for row, numbers in zip(rows, recorded, strict=True)]
    run = make_run(tmp_path / "run", model_dir, dtype=dtype)
    write_groups(run, told)
    loaded = run.config.engine.model_copy(update={"dtype": "bfloat16" if engine == "bfloat16" else "float32"})
    run = replace(run, config=run.config.model_copy(update={"engine": loaded}))
    if engine in WRONG:
        with pytest.raises(StageFailed, match="nats per token"):
            check(run, model_dir)
    else:
        check(run, model_dir)
    _, details = measured(run)
    allowed = run.config.training.allowed_mismatch(details["rounding"])
    assert not 0.5 * allowed < details["mean"] < 2 * allowed, "the bound is not luck"


def test_a_measured_sample_is_judged_again_and_not_scored_again(
    tmp_path: Path, model_dir: Path, rows: list[Row]
) -> None:
    run = prepared(tmp_path, model_dir, rows)
    assert check(run, model_dir).forwards > 0
    assert check(run, model_dir).forwards == 0


def test_a_mean_that_is_not_a_number_cannot_pass(tmp_path: Path) -> None:
    found = {"mean": math.nan, "max": math.nan, "sequences": 1, "worst": "r", "drifted": 0}
    with pytest.raises(StageFailed, match="nan nats"):
        judge(found, 1e9, tmp_path, aloud=False)


def test_the_sample_is_bounded_seeded_and_different_for_each_round() -> None:
    first = chosen(1000, 64, 0, 0)
    assert len(set(first)) == 64
    assert first == sorted(first) == chosen(1000, 64, 0, 0)
    assert first not in (chosen(1000, 64, 0, 1), chosen(1000, 64, 1, 0))
    assert chosen(5, 64, 0, 0) == [0, 1, 2, 3, 4]


def test_tokens_that_text_does_not_keep_are_found_with_their_place(model_dir: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    whole = tokenizer("print(sum(int(x) for x in input().split()))", add_special_tokens=False)["input_ids"]
    pieces = [token for letter in "print" for token in tokenizer(letter, add_special_tokens=False)["input_ids"]]
    end = tokenizer.eos_token_id
    assert len(pieces) > len(tokenizer("print", add_special_tokens=False)["input_ids"]), "the vocabulary merges letters"
    assert first_drifts(model_dir, [[*whole, end], pieces, [*whole, *pieces]]) == [None, 0, len(whole)]
