"""Log-probs once an answer: equal, to the bit, to those that vLLM hands over token by token."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from oapl_core.rollouts.kept_logprobs import KEY, KeepingLogprobs, StepLogprobs, kept_logprobs
from tests.core.rollouts.engine_session import GROUP, PROMPTS

ROOT = Path(__file__).resolve().parents[3]
CASES = ("plain", "cached prompts", "side by side", "other weights", "preempted")


def output(rows: dict[str, int], tokens: int, starts: list[int] | None = None) -> Any:
    """A made-up output of a step, as vLLM's model runner makes them: log-probs of ``tokens`` sampled tokens."""

    def own(row: int, count: int) -> str:
        return f"vLLM's own {row} {count}"

    lists = SimpleNamespace(
        logprob_token_ids=np.arange(100, 100 + tokens, dtype=np.int32)[:, None],
        logprobs=-np.arange(1, 1 + tokens, dtype=np.float32)[:, None] / 3,
        cu_num_generated_tokens=starts,
        slice_request=own,
    )
    return SimpleNamespace(logprobs=lists, req_id_to_index=rows)


def request(*stop: str, logprobs: int = 0) -> Any:
    return SimpleNamespace(sampling_params=SimpleNamespace(stop=list(stop), num_logprobs=logprobs))


class Ending:
    """A scheduler that ends requests."""

    def _free_request(self, _request: Any) -> tuple[dict[str, Any] | None, Any]:
        return {"theirs": 1}, None


def test_what_was_kept_arrives_with_the_end_beside_what_is_handed_over_by_others() -> None:
    scheduler: Any = type("Made", (KeepingLogprobs, Ending), {})()
    requests, kept = {"a": request(), "b": request("stop"), "c": request(logprobs=5)}, scheduler._kept
    for _ in range(2):
        step = StepLogprobs(output({"a": 1, "b": 0, "c": 2}, 3), requests, kept)
        assert step.slice_request(1, 1) is None
        assert [step.slice_request(row, 1) for row in (0, 2)] == ["vLLM's own 0 1", "vLLM's own 2 1"]
    told, _ = scheduler._free_request(SimpleNamespace(request_id="a"))
    assert told["theirs"] == 1
    third = float(np.float32(-2) / np.float32(3))
    assert kept_logprobs(SimpleNamespace(kv_transfer_params=told)) == ([101, 101], [third, third])
    assert scheduler._free_request(SimpleNamespace(request_id="b"))[0] == {"theirs": 1}
    assert not kept
    assert kept_logprobs(SimpleNamespace(kv_transfer_params=None)) is None


def test_accepted_tokens_of_speculative_steps_alone_are_kept() -> None:
    scheduler: Any = type("Made", (KeepingLogprobs, Ending), {})()
    step = StepLogprobs(output({"a": 0, "b": 1}, 5, [0, 2, 5]), {"a": request(), "b": request()}, scheduler._kept)
    step.slice_request(1, 3)
    step.slice_request(0, 1)
    told = {name: scheduler._free_request(SimpleNamespace(request_id=name))[0] for name in "ab"}
    assert KEY in told["a"]
    ids = {name: kept_logprobs(SimpleNamespace(kv_transfer_params=own)) for name, own in told.items()}
    assert [ids[name][0] for name in "ab"] == [[100], [102, 103, 104]]  # type: ignore[index]


# on a real engine -----------------------------------------------------------------------------------------------------


def found_in(folder: Path, **environment: str) -> dict[str, Any]:
    if find_spec("vllm") is None:
        pytest.skip("the engine is not installed")
    command = [sys.executable, "-m", "tests.core.rollouts.kept_session", str(folder)]
    # several threads share out sums by the batch, which is another in each engine: bits would differ for that alone
    given = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads((folder / "kept.json").read_text())
    return found


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return found_in(tmp_path_factory.mktemp("kept"))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_rows_are_those_of_log_probs_handed_over_token_by_token(session: dict[str, Any], case: str) -> None:
    kept, handed_over = session[case]
    assert len(kept) == PROMPTS * GROUP
    assert kept == handed_over
    assert all(len(ids) == len(logprobs) > 0 for ids, logprobs, *_ in kept.values())


@pytest.mark.slow
def test_they_are_kept_where_no_stop_text_is_given_and_nothing_is_left_behind(session: dict[str, Any]) -> None:
    answers = PROMPTS * GROUP
    assert session["kept"] == [True] * answers + [False] * answers
    assert session["left"] == 0
    assert session["preemptions"] > 3


@pytest.mark.slow
def test_they_reach_us_from_a_core_in_another_process(session: dict[str, Any], tmp_path: Path) -> None:
    apart = found_in(tmp_path, VLLM_ENABLE_V1_MULTIPROCESSING="1")
    assert all(apart[case] == session[case] for case in CASES)
    assert apart["kept"] == session["kept"]
