"""The engine against transformers, against itself, and (slow) against kill -9; all on one real vLLM process."""

import json
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from oapl_core.run_folder.run import Run
from oapl_core.settings.training import TrainingConfig
from oapl_core.tables import ROLLOUTS, read_table
from oapl_core.turns.rows import prompt_hash
from tests.core.rollouts.engine_session import GROUP, PROMPTS, SHORT, requests, sampling_run
from tests.processes import kill_alone, started
from tests.tiny_model import TEXTS

pytestmark = pytest.mark.skipif(find_spec("vllm") is None, reason="the engine is not installed")

Answers = dict[str, list[Any]]
KEYS = {request.key for request in requests()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine")


@pytest.fixture(scope="module")
def session(folder: Path) -> dict[str, Any]:
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-m", "tests.core.rollouts.engine_session", str(folder)]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    found: dict[str, Any] = json.loads((folder / "session.json").read_text())
    return found


def largest_difference(one: Answers, other: dict[str, list[float]]) -> float:
    return max(abs(float(a) - b) for key in KEYS for a, b in zip(one[key][1], other[key], strict=True))


def same_ids(one: Answers, other: Answers) -> float:
    """Share of equal answers."""
    return sum(bool(one[key][0] == other[key][0]) for key in other) / len(other)


def test_every_request_is_answered_once_within_its_length(session: dict[str, Any]) -> None:
    assert set(session["first"]) == KEYS
    for request in requests():
        ids, logprobs, reason, _ = session["first"][request.key]
        assert 1 <= len(ids) <= request.max_tokens
        assert len(logprobs) == len(ids)
        assert (len(ids) == request.max_tokens) or reason == "stop"


def test_turns_are_read_by_the_engine_as_they_were_sampled(session: dict[str, Any]) -> None:
    asked = {request.key: request for request in requests()}
    assert set(session["turns"]) == KEYS
    assert sum(len(turns[3]) for turns in session["turns"].values()) > 2 * len(KEYS)
    for key, (ids, logprobs, mask, starts, hashes) in session["turns"].items():
        prompts = [[*asked[key].prompt_ids, *ids[:start]] for start in starts]
        assert hashes == [prompt_hash(prompt) for prompt in prompts]
        # through the prefix cache, at the tokens of every turn
        expected = session["reference"]["turns"][key]
        assert all(p == pytest.approx(q, abs=1e-4) for p, q, own in zip(logprobs, expected, mask, strict=True) if own)
        assert all(p == 0.0 for p, own in zip(logprobs, mask, strict=True) if not own)


def test_each_turn_of_a_round_was_given_what_stands_before_it_with_every_chat_template(session: dict[str, Any]) -> None:
    roles = {"qwen": "user\n<tool_response>", "llama": "ipython\n", "gemma": "user\n<tool_response>"}
    assert set(roles) == set(session["families"])
    for family, found in session["families"].items():
        assert found["rows"] == len(found["turns"]) == len(TEXTS) * GROUP
        assert sum(turns > 1 for turns in found["turns"]) > found["rows"] // 2
        assert found["unsound"] == []
        for text in found["between"]:
            assert f"<|im_start|>{roles[family]}" in text
            assert "< |im_end|>" in text, "what a tool prints ends no turn"


@pytest.mark.parametrize(
    ("model", "answers"), [("first", "first"), ("second", "swapped"), ("untied", "untied swapped")]
)
def test_logprobs_are_those_of_transformers_in_float32(session: dict[str, Any], model: str, answers: str) -> None:
    assert largest_difference(session[answers], session["reference"][model]) < 1e-4


def test_logprobs_can_fail_that_test(session: dict[str, Any]) -> None:
    wrong = {key: session["reference"]["second"][key] for key in KEYS}
    shorter = {k: [None, a[1][:3]] for k, a in session["first"].items() if len(a[1]) >= 3 and len(wrong[k]) >= 3}
    assert max(abs(x - y) for k, a in shorter.items() for x, y in zip(a[1], wrong[k][:3], strict=True)) > 1e-2


def mean_difference(one: Answers, other: dict[str, list[float]]) -> float:
    """Nats per token, as the trainer compares itself with the engine."""
    every = [abs(float(a) - b) for key in KEYS for a, b in zip(one[key][1], other[key], strict=True)]
    return sum(every) / len(every)


def test_at_another_temperature_logprobs_are_those_that_the_trainer_has_at_it(session: dict[str, Any]) -> None:
    assert (session["warm mode"], session["raw mode"]) == ("processed_logprobs", "raw_logprobs")
    agreed, at_one = (mean_difference(session["warm"], session["reference"][name]) for name in ("warm", "warm at 1"))
    allowed = TrainingConfig().allowed_mismatch(0.0)
    assert agreed < 1e-5 < allowed < at_one, "a trainer at 1 would be stopped"
    assert at_one > 1000 * agreed
    # an engine that was started for 1 samples the same from softmax(logits / T), and tells those of softmax(logits)
    assert same_ids(session["warm"], session["raw"]) == 1.0
    assert mean_difference(session["raw"], session["reference"]["warm at 1"]) < 1e-5


@pytest.mark.parametrize("other", ["shuffled", "alone"])
def test_a_seed_gives_the_same_answer_whatever_is_sampled_beside_it(session: dict[str, Any], other: str) -> None:
    assert same_ids(session["first"], session[other]) == 1.0


def test_different_seeds_give_different_answers_to_one_prompt(session: dict[str, Any]) -> None:
    for prompt in range(PROMPTS):
        answers = {tuple(session["first"][f"{prompt}/{g}"][0]) for g in range(GROUP)}
        assert len(answers) > 1


def test_the_models_own_sampling_advice_is_not_followed_nor_does_the_size_of_the_batch_matter(
    session: dict[str, Any],
) -> None:
    """Its generation_config.json says temperature 0.1, top-k 1 and a repetition penalty of 2."""
    assert same_ids(session["first"], session["unadvised, 5 at once"]) == 1.0


def test_temperature_and_nucleus_change_what_is_sampled(session: dict[str, Any]) -> None:
    assert same_ids(session["first"], session["nucleus"]) < 1.0
    assert all(not answer[1] for answer in session["nucleus"].values()), "log-probs were not asked for"
    for prompt in range(PROMPTS):
        assert len({tuple(session["greedy"][f"{prompt}/{g}"][0]) for g in range(GROUP)}) == 1


def test_swapped_weights_sample_exactly_what_a_fresh_engine_samples(session: dict[str, Any]) -> None:
    assert same_ids(session["swapped"], session["fresh"]) == 1.0
    fresh = {key: session["fresh"][key][1] for key in KEYS}
    assert largest_difference(session["swapped"], fresh) < 1e-5
    assert same_ids(session["first"], session["swapped"]) < 0.5, "the two models differ"


def test_swapping_back_restores_the_first_weights(session: dict[str, Any]) -> None:
    assert same_ids(session["first"], session["swapped back"]) == 1.0


def test_a_stop_text_ends_an_answer_with_the_token_that_completes_it(session: dict[str, Any], folder: Path) -> None:
    """Each answer is the beginning of the one that the same seed gave without stop texts, log-probs included."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "first")
    inside = 0
    assert len(session["stops"]) > 20
    for key, stop in session["stops"].items():
        ids, logprobs, reason, text, stop_tokens = session["stopped"][key]
        whole = session["unstopped"][key]
        texts = [tokenizer.decode(whole[0][:n], skip_special_tokens=True) for n in range(len(whole[0]) + 1)]
        end = next(n for n, one in enumerate(texts) if stop in one)
        assert (ids, reason) == (whole[0][:end], "stop")
        assert max(abs(a - b) for a, b in zip(logprobs, whole[1], strict=False)) < 1e-5
        assert len(logprobs) == len(ids)
        assert text == texts[end].partition(stop)[0]
        kept = len(ids) - stop_tokens
        assert texts[kept].startswith(text)
        assert not kept or not texts[kept - 1].startswith(text), "its last token has a part of the answer"
        inside += texts[end] != text + stop or texts[kept] != text
    assert inside > 3, "some stop text began or ended inside of a token"


def test_a_stop_text_that_is_a_special_token_ends_as_an_end_token_does(session: dict[str, Any], folder: Path) -> None:
    from transformers import AutoTokenizer

    token = AutoTokenizer.from_pretrained(folder / "first").convert_tokens_to_ids("<|im_start|>")
    ended = 0
    for key, (ids, _, reason, text, stop_tokens) in session["by a token"].items():
        whole = session["unstopped"][key]
        end = whole[0].index(token) + 1 if token in whole[0] else len(whole[0])
        assert ids == whole[0][:end]
        assert (reason, stop_tokens) == ("stop" if end < len(whole[0]) else whole[2], 0)
        assert "<|im_start|>" not in text
        ended += end < len(whole[0])
    assert ended, "some answer had it"


def test_an_end_token_is_part_of_the_response_and_not_of_the_text(session: dict[str, Any], folder: Path) -> None:
    end = json.loads((folder / "first" / "config.json").read_text())["eos_token_id"]
    answers = [a for name in ("first", "swapped", "untied swapped", "nucleus") for a in session[name].values()]
    stopped = [a for a in answers if a[2] == "stop"]
    assert stopped, "some answer ended by itself"
    assert all(a[0][-1] == end and end not in a[0][:-1] for a in stopped)
    assert all("<|im_end|>" not in a[3] for a in stopped)
    assert all(end not in a[0] for a in answers if a[2] == "length")


def test_the_engines_tokenizer_encodes_like_the_one_that_was_saved(session: dict[str, Any], folder: Path) -> None:
    from tokenizers import Tokenizer

    saved = Tokenizer.from_file(str(folder / "first" / "tokenizer.json"))
    assert session["encoded"] == [saved.encode(text).ids for text in TEXTS]


def test_what_cannot_be_done_is_refused_in_one_line(session: dict[str, Any]) -> None:
    assert "engine.max_model_len is 256" in session["too long"]
    assert "cannot take the place of" in session["foreign"]
    assert "vLLM cannot run this model" in session["too wide"] and "max_model_len" in session["too wide"]


def test_the_engine_names_itself(session: dict[str, Any]) -> None:
    assert session["name"].startswith("vllm ")
    assert set(session["startup_s"]) == {"import", "engine"}


@pytest.mark.slow  # with a made-up engine in test_generate.py and test_killed.py, by default
def test_a_round_killed_while_sampling_goes_on_and_ends_the_same(
    session: dict[str, Any], folder: Path, root: Path
) -> None:
    whole, run = (sampling_run(folder / name, folder / "first", max_tokens=SHORT) for name in ("whole", "killed"))
    generate = [sys.executable, "-m", "oapl_core.rollouts.generate", "--round", "0"]
    subprocess.run([*generate, str(whole.root)], cwd=root, check=True, capture_output=True)
    command = [*generate, str(run.root)]
    with started(command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and not recorded(run):
            time.sleep(0.005)
        kill_alone(process)
    kept = {path: path.stat().st_mtime_ns for path in recorded(run)}
    assert 0 < len(kept) < len(recorded(whole)), "killed in the middle"
    finished = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert rows(run) == rows(whole)


def recorded(run: Run) -> list[Path]:
    return sorted(run.root / name for name in run.ledger.artifacts() if "1_rollouts" in name)


def rows(run: Run) -> list[tuple[Any, ...]]:
    names = ("rollout_id", "problem_id", "sample", "seed", "response_ids", "text", "finish_reason", "policy_hash")
    table = [row for path in recorded(run) for row in read_table(path, ROLLOUTS).to_pylist()]
    return [tuple(map(str, (row[name] for name in names))) for row in table]
