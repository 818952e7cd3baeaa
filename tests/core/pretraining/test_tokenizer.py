"""The tiny model's tokenizer: exact round trips, short answers, and the same ids whoever loads the saved folder."""

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oapl_core.pretraining.pretrain import corpus, read_solved
from oapl_core.pretraining.tokenizer import IM_END, PAD, train_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SOLUTIONS = Path(__file__).resolve().parents[3] / "data" / "demo" / "solutions.jsonl"
TEXTS = corpus(read_solved(SOLUTIONS))
STRANGE = ["\n\n  a\r\n\ttab", "naïve ☃ 漢字 \U0001f600", "x" * 50, " leading and trailing ", "a[-12] == 34", "\u0301"]


@pytest.fixture(scope="module")
def tokenizer() -> "PreTrainedTokenizerFast":
    return train_tokenizer(TEXTS, 1024)


@pytest.fixture(scope="module")
def saved(tokenizer: "PreTrainedTokenizerFast", tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}))
    return folder


def conversations() -> list[str]:
    return [f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in TEXTS[:200]]


def test_decoding_gives_back_every_text_of_the_corpus_and_any_other(tokenizer: Any) -> None:
    for text in [*set(TEXTS), *STRANGE]:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_folder_loaded_by_transformers_encodes_as_the_trained_tokenizer(tokenizer: Any, saved: Path) -> None:
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(saved)
    for text in [*set(TEXTS), *STRANGE, *conversations()]:
        assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
        assert loaded.decode(tokenizer(text)["input_ids"]) == text
    assert loaded.chat_template == tokenizer.chat_template


@pytest.mark.slow  # what sampling reads of it is compared by default in rollouts/test_engine.py
def test_the_folder_loaded_by_vllm_encodes_as_the_trained_tokenizer(tokenizer: Any, saved: Path) -> None:
    """In a process of its own: importing vLLM changes torch's threads and takes long."""
    texts = sorted({*TEXTS, *STRANGE, *conversations()})
    code = (
        "import json, sys\n"
        "from vllm.tokenizers import get_tokenizer\n"
        "loaded = get_tokenizer(sys.argv[1])\n"
        "json.dump([loaded(text)['input_ids'] for text in json.load(sys.stdin)], open(sys.argv[2], 'w'))\n"
    )
    ids = saved / "ids.json"
    done = subprocess.run(
        [sys.executable, "-c", code, saved, ids], input=json.dumps(texts), text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(ids.read_text()) == [tokenizer(text)["input_ids"] for text in texts]


def test_constants_are_single_tokens_so_that_copying_one_is_copying_a_token(tokenizer: Any) -> None:
    for digit in "123456789":
        phrase = tokenizer.tokenize(f"add {digit} to each\n")
        code = tokenizer.tokenize(f"a = [v + {digit} for v in a]\n")
        assert phrase.count(digit) == code.count(digit) == 1


def test_answers_are_short(tokenizer: Any) -> None:
    lengths = [len(tokenizer(solution)["input_ids"]) for item in read_solved(SOLUTIONS) for solution in item.solutions]
    assert sum(lengths) / len(lengths) < 15
    assert max(lengths) <= 25


def test_end_of_turn_padding_and_opening_are_three_different_tokens(tokenizer: Any) -> None:
    assert tokenizer.eos_token == IM_END
    assert tokenizer.pad_token == PAD
    ids = {tokenizer.convert_tokens_to_ids(token) for token in (IM_END, PAD, "<|im_start|>")}
    assert len(ids) == 3
    assert tokenizer(IM_END)["input_ids"] == [tokenizer.eos_token_id]


def test_the_chat_template_is_qwens(tokenizer: Any) -> None:
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Ho"},
        {"role": "user", "content": "Hm"},
    ]
    text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    assert text == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n"
        "<|im_start|>user\nHm<|im_end|>\n<|im_start|>assistant\n"
    )
