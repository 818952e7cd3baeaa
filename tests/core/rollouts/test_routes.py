"""Routes in a round: asked of the engine, stored with their rollouts, kept through kills, carried into the groups."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from oapl_core.errors import ConfigError, StageFailed
from oapl_core.groups.build import build
from oapl_core.rollouts.engine import SamplingEngine
from oapl_core.rollouts.engine_start import engine_arguments
from oapl_core.rollouts.generate import generate
from oapl_core.rollouts.requests import Request, SampledAnswer
from oapl_core.routes import Routing
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment import EngineConfig
from oapl_core.tables import GROUPS, ROLLOUTS, VERDICTS, read_table
from oapl_extras.plan.fitting import Fit, Machine
from oapl_extras.plan.known_size import known_size
from tests.family_models import write_family
from tests.sampling_run import MadeUpSampler, made_up_model, make_run, write
from tests.tiny_model import write_tiny_model

MADE_UP = Routing(3, 2, 300)
"""Of the sampler below: two bytes for an expert."""


class Routed(MadeUpSampler):
    """Says routes that depend on the tokens."""

    def sample(self, requests: Iterable[Request | None], with_logprobs: bool = True) -> Iterator[SampledAnswer]:
        for answer in super().sample(requests, with_logprobs):
            routes = expected([*answer.request.prompt_ids, *answer.response_ids])
            yield replace(answer, columns={"routes": routes}, stop_tokens=1)


def expected(ids: list[int]) -> Any:
    return (np.array(ids[:-1], "uint16")[:, None, None] + np.arange(6, dtype="uint16").reshape(3, 2)) % 300


def routed_run(folder: Path, **sampling: Any) -> Run:
    sampling = {"group_size": 2, "max_tokens": 12, "problems_per_part": 3, "routes": True, **sampling}
    return make_run(folder / "runs", made_up_model(folder / "model"), sampling=sampling, rounds=[{"keep": "all"}])


def rollouts(run: Run) -> list[dict[str, Any]]:
    parts = sorted(run.rollouts(0).glob("part-*.parquet"))
    return [row for part in parts for row in read_table(part, ROLLOUTS).to_pylist()]


def check(rows: list[dict[str, Any]], prompts: dict[str, list[int]]) -> None:
    for row in rows:
        stored = np.frombuffer(row["routes"], "uint16").reshape(-1, 3, 2)
        assert np.array_equal(stored, expected([*prompts[row["problem_id"]], *row["response_ids"]]))


def judge(run: Run) -> None:
    empty: dict[str, Any] = dict.fromkeys(name for name, _ in VERDICTS)
    for part in sorted(run.rollouts(0).glob("part-*.parquet")):
        ids = read_table(part, ROLLOUTS, ("rollout_id", "problem_id")).to_pylist()
        write(
            run,
            run.verdicts(0) / part.name,
            VERDICTS,
            [
                empty | row | {"reward": float(i % 2), "correct": bool(i % 2), "outcome": "passed"}
                for i, row in enumerate(ids)
            ],
        )


@pytest.mark.parametrize("stop_tokens", ["trained", "cut"])
def test_routes_go_with_their_tokens_through_a_broken_engine_into_the_groups(tmp_path: Path, stop_tokens: str) -> None:
    run = routed_run(tmp_path, stop=["x"], stop_tokens=stop_tokens)
    with pytest.raises(InterruptedError):
        generate(run, 0, lambda model, config: Routed(model, config, stop_after=9))
    sampler = Routed(run.behavior(0), run.config.engine)
    generate(run, 0, lambda *_: sampler)
    assert len(sampler.answered) == 14 - 9, "what was finished before was in pieces, with its routes"
    prompts = {f"train-{i}": [5, i] for i in range(7)}
    check(rollouts(run), prompts)
    judge(run)
    build(run, 0)
    groups = read_table(run.groups(0), GROUPS).to_pylist()
    assert len(groups) == 14
    check(groups, prompts)
    entry = run.ledger.artifacts()["round_00/1_rollouts/part-00000.parquet"]
    assert entry.config["routes"] is True


def test_routes_stay_with_their_rows_beside_rows_without_any(tmp_path: Path) -> None:
    """Training refuses such a file: tests/core/training/test_routes.py."""
    run = routed_run(tmp_path)
    generate(run, 0, Routed)
    judge(run)
    part = run.rollouts(0) / "part-00001.parquet"
    write(run, part, ROLLOUTS, [row | {"routes": None} for row in read_table(part, ROLLOUTS).to_pylist()])
    build(run, 0)
    bare = set(read_table(part, ROLLOUTS, ["rollout_id"])["rollout_id"].to_pylist())
    groups = read_table(run.groups(0), GROUPS).to_pylist()
    assert {(row["rollout_id"] in bare, row["routes"] is None) for row in groups} == {(True, True), (False, False)}


def test_what_cannot_tell_routes_is_refused_in_one_line(tmp_path: Path) -> None:
    dense = write_tiny_model(tmp_path / "dense")
    with pytest.raises(ConfigError, match=r"sampling.routes: .*dense has no experts; leave it out"):
        SamplingEngine(dense, EngineConfig(), columns=["routes"])
    with pytest.raises(ConfigError, match=r"servers of \[sampler\] do not tell routes; leave it out"):
        make_run(tmp_path, dense, sampling={"routes": True}, sampler={"urls": ["http://host:1"]})
    with pytest.raises(ConfigError, match=r"enable_return_routed_experts is decided here: use sampling.routes"):
        make_run(tmp_path, dense, engine={"options": {"enable_return_routed_experts": True}})
    config = make_run(tmp_path, dense, sampling={"routes": True}).config
    size = known_size(config)
    assert size
    found = [one for one in Fit(config, size[0], Machine((), None)).findings() if one.refuses]
    assert [one.line for one in found] == [
        "sampling.routes is for mixtures of experts, and the model has no experts: leave it out"
    ]


def test_on_gpus_vllm_is_asked_and_its_answer_is_looked_at(tmp_path: Path) -> None:
    folder = write_family(tmp_path / "model", "qwen3-moe")
    (reporter,) = SamplingEngine(folder, EngineConfig(), columns=["routes"])._reporters.values()
    for on_cpu in (True, False):
        asked = engine_arguments(folder, EngineConfig(), on_cpu, "raw_logprobs", (), [reporter.arguments(on_cpu)])
        assert asked.get("enable_return_routed_experts", False) is not on_cpu
    reporter.begin(None, on_cpu=False)
    told = np.arange(6 * 2 * 2, dtype="uint8").reshape(6, 2, 2)
    for ids, routes, fine in ([5, 6], told, True), ([5, 6], None, False), ([5] * 9, told, False):
        output = SimpleNamespace(token_ids=ids, routed_experts=routes)
        if fine:
            assert np.array_equal(reporter.of("a", 2 + len(ids), output), told[:4])
        else:
            with pytest.raises(StageFailed, match="did not tell the routes of 'a'; leave sampling.routes out"):
                reporter.of("a", 2 + len(ids), output)
