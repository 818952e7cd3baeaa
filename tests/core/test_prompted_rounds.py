"""Whole rounds with prompts that a person owns: a base model without a chat template, and a chat model that thinks.

Both can add a little: they are trained here for seconds on answers in the form that their prompts ask for.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from oapl_core.problems.encoding import load_encoder
from oapl_core.problems.prompts import conversation
from oapl_core.run_folder.run import Run
from oapl_core.settings.pretrain import PretrainConfig
from oapl_core.settings.problems import PromptConfig
from oapl_core.tables import PROMPTS, ROLLOUTS, VERDICTS, read_table
from tests.tiny_model import CHAT_TEMPLATE, END, write_tokenizer
from tests.whole_run import oapl

pytestmark = pytest.mark.slow

SPLITS = ("train", "validation", "heldout")
STOP = "\n\nQ:"
BASE: dict[str, Any] = {
    "template": "Q: {{ statement }}\nA:\n",
    "examples": [{"statement": "0 + 0?", "solution": "0 + 0 = 0\n#### 0"}, {"statement": "9?", "solution": "#### 9"}],
}
CHAT: dict[str, Any] = {"template": "{% set system %}\nAdd.\n{%- endset %}\n{{ statement }}\n", "thinking": True}
SWITCH = "{% if add_generation_prompt and enable_thinking is defined and enable_thinking %}<think>\n{% endif %}"
BOS = "<|im_start|>"


def sums(split: str) -> list[dict[str, Any]]:
    places = {"train": (0, 12), "validation": (12, 16), "heldout": (16, 21)}[split]
    pairs = [(a, b) for a in range(5) for b in range(5)][places[0] : places[1]]
    return [
        {"problem_id": f"{a}+{b}", "kind": "math", "statement": f"{a} + {b}?", "answer": str(a + b)} for a, b in pairs
    ]


def write_model(folder: Path, words: dict[str, Any], solution: str, stop: tuple[str, ...]) -> Path:
    """A model that mostly answers as ``solution`` says."""
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    from oapl_core.pretraining.model import Example, new_model, train_model

    write_tokenizer(folder)
    (folder / "chat_template.jinja").unlink()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if "thinking" in words:
        tokenizer.chat_template = CHAT_TEMPLATE + SWITCH
    known = [(BOS, tokenizer.convert_tokens_to_ids(BOS))]
    tokenizer._tokenizer.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=known)
    tokenizer.save_pretrained(folder)
    config = PretrainConfig(solutions=folder, hidden_size=64, layers=2, heads=2, intermediate_size=128, epochs=60)
    config = config.model_copy(update={"batch_size": 7})
    model = new_model(config, tokenizer, 0)
    model.save_pretrained(folder)
    wording = PromptConfig.model_validate(words | {"template": {"file": "own.jinja", "text": words["template"]}})
    encode, examples = load_encoder(folder, wording.thinking), []
    for row in (row for split in SPLITS for row in sums(split)):
        prompt, ids = encode(conversation(row, wording))
        answer = encode.answer(prompt, solution.format(row["statement"][:-1], row["answer"]), stop)
        examples.append(Example(ids, tokenizer(answer, add_special_tokens=False)["input_ids"]))
    train_model(model, examples, config, 0, lambda *_: None)
    model.save_pretrained(folder)
    return folder


def whole_run(folder: Path, words: dict[str, Any], sampling: dict[str, Any], answer: Any) -> tuple[Run, str]:
    """`oapl run` to its end, and what the problem stage said."""
    (folder / "own.jinja").write_text(words["template"])
    for split in SPLITS:
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sums(split)))
    changes: dict[str, Any] = {
        "name": "prompted",
        "model": folder / "model",
        "runs_dir": folder / "runs",
        "problems.template": folder / "own.jinja",
        "problems.max_prompt_tokens": 128,
        "verifier.workers": 2,
        "engine.dtype": "float32",
        "engine.max_model_len": 176,
        "engine.kv_cache_gib": 0.25,
        "sampling.max_tokens": 48,
        "training.dtype": "float32",
        "training.batch_size": 16,
        "training.tokens_per_micro_batch": 2048,
        "evaluation.max_tokens": 48,
        "evaluation.validation_samples": 2,
        "evaluation.heldout_samples": 2,
    }
    changes |= {f"problems.{split}": folder / f"{split}.jsonl" for split in SPLITS}
    changes |= {f"sampling.{key}": value for key, value in sampling.items()}
    changes |= {f"problems.{key}": value for key, value in words.items() if key == "thinking"}
    lines = [f"{key} = {json.dumps(value, default=str)}" for key, value in changes.items()]
    shots = [", ".join(f"{key} = {json.dumps(text)}" for key, text in one.items()) for one in words.get("examples", [])]
    lines += [f"verifier.answer = {answer}", f"problems.examples = [{', '.join(f'{{{one}}}' for one in shots)}]"]
    (folder / "own.toml").write_text("\n".join([*lines, "[[rounds]]", 'keep = "all"']) + "\n")
    oapl(["run", str(folder / "own.toml")])
    run = Run.open(folder / "runs" / "prompted-seed0")
    return run, run.log("problems.prepare").read_text()


def rows(folder: Path, fields: Any) -> list[dict[str, Any]]:
    return [row for part in sorted(folder.glob("part-*.parquet")) for row in read_table(part, fields).to_pylist()]


def agrees(run: Run) -> None:
    """Engine and trainer give every sampled token the same log-prob, and the round was trained."""
    details = run.ledger.artifacts()[run.name(run.mismatch(0))].details
    assert details["mean"] < 1e-4, details
    assert run.checkpoint(0, 1).is_dir()


@pytest.mark.parametrize("stop_tokens", ["trained", "cut"])
def test_a_base_model_with_examples_and_stop_texts_does_a_whole_round(tmp_path: Path, stop_tokens: str) -> None:
    from transformers import AutoTokenizer

    write_model(tmp_path / "model", BASE, "{0} = {1}\n#### {1}", (STOP,))
    sampling = {"stop": [STOP], "stop_tokens": stop_tokens}
    run, said = whole_run(tmp_path, BASE, sampling, '"hash"')
    assert f"prompts are plain text after '{BOS}': the model has no chat template" in said
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    for row in read_table(run.prompts, PROMPTS).to_pylist():
        assert row["prompt"] == tokenizer.decode(row["prompt_ids"])
        assert row["prompt"].startswith(f"{BOS}Q: 0 + 0?\nA: 0 + 0 = 0\n#### 0\n\nQ: 9?\nA: #### 9\n\nQ: ")
        assert row["prompt"].endswith("?\nA:")
    rollouts = rows(run.rollouts(0), ROLLOUTS)
    stopped = [row for row in rollouts if row["finish_reason"] == "stop"]
    ended = [row for row in stopped if END not in tokenizer.decode(row["response_ids"])]
    assert len(ended) > len(rollouts) / 2
    for row in ended:
        whole = tokenizer.decode(row["response_ids"])
        assert STOP not in row["text"]
        assert whole.startswith(row["text"])
        assert (STOP in whole) is (stop_tokens == "trained")
    verdicts = {row["rollout_id"]: row for row in rows(run.verdicts(0), VERDICTS)}
    passed = [row for row in rollouts if verdicts[row["rollout_id"]]["outcome"] == "passed"]
    assert len(passed) > len(rollouts) / 4
    assert all(f"#### {verdicts[row['rollout_id']]['answer']}" in row["text"] for row in passed)
    agrees(run)
    card = json.loads(run.card().read_text())
    assert json.dumps([STOP]) in card["asked"]["sampling"]["stop"]
    assert card["asked"]["prompts"]["template"] == BASE["template"]
    assert card["asked"]["verifier"]["answer"] == "hash"
    page = (run.root / "report" / "index.html").read_text()
    assert all(key in page for key in ("problems.template.text", "problems.examples.0.solution", "sampling.stop"))


def test_a_chat_model_that_thinks_does_a_whole_round(tmp_path: Path) -> None:
    write_model(tmp_path / "model", CHAT, "{0} is {1}\n</think>\nThe answer is {1}", ())
    run, said = whole_run(tmp_path, CHAT, {}, '{after = "The answer is"}')
    assert "prompts go through the model's chat template" in said
    for row in read_table(run.prompts, PROMPTS).to_pylist():
        assert row["prompt"].startswith(f"{BOS}system\nAdd.{END}\n{BOS}user\n")
        assert row["prompt"].endswith(f"?{END}\n{BOS}assistant\n<think>\n")
    verdicts = rows(run.verdicts(0), VERDICTS)
    assert sum(row["outcome"] == "passed" for row in verdicts) > len(verdicts) / 4
    assert all(row["answer"].isdecimal() for row in verdicts if row["outcome"] == "passed"), "the text after the marker"
    agrees(run)
