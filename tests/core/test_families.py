"""Families of models: the trainer against each one's own forward pass, and what becomes of a wrong copy of a model.

With vLLM, two ranks and everything else a family goes through: the slow tests here, which repeat cases of
docs/models.md (``python -m bench.models``).
"""

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.models import DTYPES, PAGE, RAW, made_up
from bench.models_page import text
from oapl_core.errors import StageFailed
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.training.examples import read_examples
from oapl_core.training.job import make_job
from oapl_core.training.mismatch import compare_with_engine
from oapl_core.training.model.checkpoint import load_model
from oapl_core.training.model.logprobs import Policy
from tests.core.training.made_round import make_run, plain_logprobs, write_groups
from tests.core.training.test_mismatch import CountingEngine
from tests.family_models import FAMILIES, write_family

Row = dict[str, Any]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's model."""
    root = tmp_path_factory.mktemp("families")

    def folder(family: str) -> Path:
        made = root / family
        return made if made.exists() else write_family(made, family)

    return folder


def own_logprobs(folder: Path, rows: list[Row]) -> list[list[float]]:
    """Of transformers' own forward pass, with the attention that has everything a family's config asks for."""
    return plain_logprobs(folder, rows, attn_implementation="eager")


def scored(policy: Policy, rows: list[Row]) -> list[float]:
    """Log-probs of all responses, one after the other."""
    whole = [torch.tensor(row["prompt_ids"] + row["response_ids"]) for row in rows]
    prompt_S = torch.tensor([len(row["prompt_ids"]) for row in rows])
    length_S = torch.tensor([len(ids) for ids in whole])
    id_ST = torch.nn.utils.rnn.pad_sequence(whole, batch_first=True)
    with torch.no_grad():
        logprob_ST = policy(id_ST, prompt_S, length_S)
    parts = zip(logprob_ST, prompt_S, length_S, strict=True)
    return [value for row, first, end in parts for value in row[first - 1 : end - 1].tolist()]


@pytest.mark.slow_if(case=lambda given: given["family"] not in ("gemma2", "granite", "deepseek-v3"))
@pytest.mark.parametrize("family", FAMILIES)
def test_the_trainer_scores_as_the_models_own_forward_pass(family: str, written: Callable[[str], Path]) -> None:
    rows = made_up(written(family))[:5]
    expected = [value for row in own_logprobs(written(family), rows) for value in row]
    assert scored(Policy(load_model(written(family)).model), rows) == pytest.approx(expected, abs=1e-4)


# What a wrong copy looks like ----------------------------------------------------------------------------------------


def other_rope(model: Any) -> None:
    model.config.rope_parameters["rope_theta"] = 500000.0


def other_window(model: Any) -> None:
    model.config.layer_types = ["full_attention"] * 2


def no_cap(model: Any) -> None:
    model.config.final_logit_softcapping = 30.0


def untied_head(model: Any) -> None:
    head = torch.nn.Linear(model.config.hidden_size, model.config.vocab_size, bias=False)
    torch.nn.init.normal_(head.weight, std=0.15)
    model.set_output_embeddings(head)
    model.config.tie_word_embeddings = False


def unscaled(model: Any) -> None:
    model.config.logits_scaling = 1.0


ERRORS: list[tuple[str, Callable[[Any], None]]] = [
    ("llama", other_rope),
    ("olmo3", other_window),
    ("gemma2", no_cap),
    ("qwen3", untied_head),
    ("granite", unscaled),
]


@pytest.mark.slow_if(case=lambda given: given["error"] in (other_window, unscaled))
@pytest.mark.parametrize(("family", "error"), ERRORS, ids=[f"{family}-{error.__name__}" for family, error in ERRORS])
def test_a_wrong_copy_of_a_model_is_refused_before_the_first_update(
    family: str, error: Callable[[Any], None], written: Callable[[str], Path], tmp_path: Path
) -> None:
    rows, sampling = made_up(written(family)), written(family)
    for row, logprobs in zip(rows, own_logprobs(sampling, rows), strict=True):
        row |= {"behavior_logprobs": logprobs, "policy_hash": policy_hash(sampling)}
    model = load_model(sampling).model
    error(model)
    model.save_pretrained(tmp_path / "wrong")
    for name, refused in ((sampling, False), (tmp_path / "wrong", True)):
        run = make_run(tmp_path / name.name, sampling)
        write_groups(run, rows)
        examples = read_examples(run.groups(0), policy_hash(sampling), sampling)
        engine = CountingEngine(Policy(load_model(name).model), run.config.training)
        if not refused:
            compare_with_engine(make_job(run, 0), engine, examples)
            continue
        with pytest.raises(StageFailed, match="log-probs of engine and trainer differ by") as told:
            compare_with_engine(make_job(run, 0), engine, examples)
        print(told.value)


# The table ------------------------------------------------------------------------------------------------------------


def test_the_page_is_made_from_the_kept_results(root: Path) -> None:
    kept = json.loads((root / RAW).read_text())
    assert (root / PAGE).read_text() == text(kept), "python -m bench.models --page"
    assert {(case["family"], case["dtype"]) for case in kept["cases"]} == set(product(FAMILIES, DTYPES))


def allowed(family: str, dtype: str) -> float:
    """Mean difference of a token, nats: rounding, and that vLLM's windows of Cohere 2 are one token wider."""
    return {"float32": 0.05 if family == "cohere2" else 2e-5, "bfloat16": 0.15}[dtype]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_case_of_the_table(family: str, dtype: str, root: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.models", "--families", family, "--dtypes", dtype, "--raw", tmp_path / "raw"]
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=root)
    assert result.returncode == 0, result.stdout + result.stderr
    (case,) = json.loads((tmp_path / "raw").read_text())["cases"]
    kept = {(c["family"], c["dtype"]): c for c in json.loads((root / RAW).read_text())["cases"]}[family, dtype]
    assert case["failed"].keys() <= kept["failed"].keys(), case["failed"]
    for found in (case, kept) if "zero_1" not in kept["failed"] else ():
        assert found["mismatch"]["mean"] <= allowed(family, dtype)
        for check in {"reload", "restart"} - found["failed"].keys():
            assert found[check]["mean"] <= allowed(family, dtype), check
