"""A round of two turns with a tool in the sandbox: sampled, judged, grouped and trained, each by its own stage.

What stands in for vLLM draws token by token from transformers, so that log-probs are the model's own.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

import polars as pl
import pytest

from oapl_core.columns import TURNS
from oapl_core.groups.build import build
from oapl_core.model_folder import load_tokenizer, policy_hash
from oapl_core.rollouts.generate import generate
from oapl_core.rollouts.requests import Request, SampledAnswer
from oapl_core.run_folder.run import METRICS_FILE, Run
from oapl_core.settings.experiment import EngineConfig
from oapl_core.tables import ROLLOUTS, read_table
from oapl_core.turns import fault
from oapl_core.verdicts.verify import verify
from tests import sandboxes
from tests.core.training.made_round import TRAINING, train_in_a_process
from tests.sampling_run import make_run
from tests.tiny_model import END, write_tiny_model

PROBLEMS, GROUP, TURN = 3, 4, 6
PROMPTS = [[5 + n, 9, 30 + n] for n in range(PROBLEMS)]


class Drawing:
    """Draws each token from the model's distribution."""

    name, logprobs_mode, dtype = "transformers", "raw_logprobs", "float32"

    def __init__(self, model_dir: Path, config: EngineConfig) -> None:
        from transformers import AutoModelForCausalLM

        self.startup_s = {"nothing": 0.0}
        self.model = AutoModelForCausalLM.from_pretrained(model_dir)
        self.tokenizer = load_tokenizer(model_dir)
        self.end = self.tokenizer.convert_tokens_to_ids(END)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def load(self, model_dir: Path) -> None: ...

    def sample(self, requests: Iterable[Request | None], with_logprobs: bool = True) -> Iterator[SampledAnswer]:
        for request in requests:
            if request is not None:
                yield self._answer(request)

    def _answer(self, request: Request) -> SampledAnswer:
        import torch

        draw, ids, logprobs = torch.Generator().manual_seed(request.seed), list[int](), list[float]()
        while len(ids) < TURN and (not ids or ids[-1] != self.end):
            with torch.no_grad():
                last = self.model(torch.tensor([[*request.prompt_ids, *ids]])).logits[0, -1].log_softmax(-1)
            # every turn ends by itself at its last place, with the log-prob that the model gives that token
            is_last = len(ids) + 1 == TURN
            ids.append(self.end if is_last else int(torch.multinomial(last.exp(), 1, generator=draw)))
            logprobs.append(float(last[ids[-1]]))
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return SampledAnswer(request, ids, logprobs, "stop", text, prompt_ids=list(request.prompt_ids))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("round")
    model = write_tiny_model(folder / "model", sharpness=3.0)
    made = make_run(
        folder,
        model,
        {"train": PROMPTS, "validation": [], "heldout": [[7]]},
        environment={"function": "tests.played_environments:Rated"},
        sampling={"group_size": GROUP, "max_tokens": 120, "problems_per_part": 2},
        verifier={"workers": 1, **({"minimum_level": sandboxes.LEVEL} if sandboxes.LEVEL else {})},
        training=TRAINING,
        rounds=[{"keep": "all"}],
    )
    generate(made, 0, Drawing)
    verify(made, 0)
    build(made, 0)
    train_in_a_process(made)  # in this one it would leave its rank and port to every later process
    return made


def rows(run: Run) -> list[dict[str, Any]]:
    parts = sorted(run.rollouts(0).glob("*.parquet"))
    return [row for part in parts for row in read_table(part, (*ROLLOUTS, *TURNS)).to_pylist()]


def test_every_row_is_sound_and_has_what_the_tool_said(run: Run) -> None:
    found = rows(run)
    assert len(found) == PROBLEMS * GROUP
    for row in found:
        assert fault(row, PROMPTS[int(row["problem_id"].rpartition("-")[2])]) is None
        (call,) = row["tool_calls"]
        said = row["response_ids"][: row["loss_mask"].index(False)]
        text = load_tokenizer(run.base_model()).decode(said, skip_special_tokens=True)
        assert (call["name"], call["result"]) == ("python", str(len(text.encode("utf-8", "replace"))))
        assert row["prompt_hashes"] is not None


def test_the_environment_judges(run: Run) -> None:
    verdicts = pl.read_parquet(run.verdicts(0) / "*.parquet")
    rewards = {row["rollout_id"]: sum(row["turn_rewards"]) for row in rows(run)}
    assert dict(verdicts.select("rollout_id", "reward").iter_rows()) == rewards
    assert set(verdicts["outcome"]) == {"passed", "wrong_answer"}


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


def test_no_session_is_left(run: Run) -> None:
    from oapl_core.environments.python_session import _Shared

    servers = {pid for sandbox in _Shared.sandboxes.values() for pid in sandbox.server_pids}
    below = {pid for server in servers for pid in sandboxes.descendants(server)}
    # watcher and gatekeeper have one process below each; a session would have two
    assert len(below) <= 2 * len(servers)
    assert servers <= sandboxes.descendants(os.getpid())
