"""Routes that a real vLLM chose on CPU: the trainer's own in float32, replayed where they are not; a round, killed."""

import json
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oapl_core.groups.build import build
from oapl_core.run_folder.run import Run
from oapl_core.tables import GROUPS, ROLLOUTS, read_table
from tests.core.rollouts.engine_session import CONFIG, requests
from tests.core.rollouts.test_killed import REAL, content, generate_in_a_process
from tests.core.rollouts.test_routes import judge
from tests.core.training.made_round import TRAINING, train_in_a_process
from tests.family_models import write_family
from tests.processes import kill_alone, started
from tests.sampling_run import make_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(find_spec("vllm") is None, reason="the engine is not installed"),
]
MANY, FEW = 0.05, 12 * 32 / 2**20
"""GiB; the latter is 12 blocks of 32 KiB and 32 tokens, of which eight answers of 130 tokens need 40."""


@pytest.mark.parametrize(
    ("family", "dtype", "gib"),
    [
        ("qwen3-moe", "float32", MANY),
        ("qwen3-moe", "float32", FEW),
        ("mixtral", "float32", MANY),
        ("gpt-oss", "float32", MANY),
        ("deepseek-v3", "float32", MANY),
        ("qwen3-moe", "bfloat16", MANY),
        ("qwen3-next", "bfloat16", MANY),
        ("deepseek-v3", "bfloat16", MANY),
    ],
)
def test_routes_are_those_that_the_log_probs_were_computed_with(
    family: str, dtype: str, gib: float, root: Path, tmp_path: Path
) -> None:
    session = [sys.executable, "-m", "tests.core.rollouts.routed_session", str(tmp_path), family, dtype, str(gib)]
    result = subprocess.run(session, cwd=root, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    found = json.loads((tmp_path / "found.json").read_text())
    print(family, dtype, found)
    if dtype == "float32":
        assert found["same"] == found["tokens"] > 1000
        assert found["max with"] < 1e-4
    else:
        assert found["same"] < found["tokens"], "rounding sends tokens elsewhere"
        assert found["mean with"] < 0.8 * found["mean without"]


def routed_run(folder: Path, model: Path, **training: Any) -> Run:
    prompts = {"train": [list(r.prompt_ids) for r in requests()][::4], "validation": [[5]], "heldout": [[5]]}
    sampling = {"group_size": 4, "max_tokens": 60, "problems_per_part": 8, "flush_s": 0.2, "routes": True}
    engine = CONFIG.model_dump() | {"max_num_seqs": 4, "dtype": "float32"}
    rounds = [{"keep": "all"}, {"keep": "all", "problems": 4}]
    given = TRAINING | {"processes": 2, "zero_stage": 3, "recompute": "all"} | training
    return make_run(folder, model, prompts, sampling=sampling, engine=engine, rounds=rounds, training=given)


def test_a_round_that_is_killed_trains_on_its_routes_and_the_next_one_starts(root: Path, tmp_path: Path) -> None:
    model = write_family(tmp_path / "model", "qwen3-moe")
    whole, run = routed_run(tmp_path / "whole", model), routed_run(tmp_path / "killed", model)
    generate_in_a_process(whole, root)
    with started([*REAL, run.root, "--round", "0"], cwd=root) as process:
        while not list(run.rollouts(0).glob(".in_flight/*/*.piece")):
            assert process.poll() is None
            time.sleep(0.05)
        kill_alone(process)
    generate_in_a_process(run, root)
    assert content(run, "run", "logprobs") == content(whole, "run", "logprobs")
    parts = [sorted(one.rollouts(0).glob("part-*.parquet")) for one in (run, whole)]
    fields = ROLLOUTS
    rows, others = ([row for path in of for row in read_table(path, fields).to_pylist()] for of in parts)
    assert [row["routes"] for row in rows] == [row["routes"] for row in others]
    judge(run)
    build(run, 0)
    groups = read_table(run.groups(0), GROUPS).to_pylist()
    assert {row["rollout_id"]: row["routes"] for row in groups} == {row["rollout_id"]: row["routes"] for row in rows}
    said = train_in_a_process(run)
    assert "tokens go to the experts that the engine chose, 2 in each layer" in said
    details = run.ledger.artifacts()[run.name(run.mismatch(0))].details
    assert details["max"] < 1e-4
    subprocess.run([*REAL, str(run.root), "--round", "1"], cwd=root, check=True)
    last = read_table(min(run.rollouts(1).glob("part-*.parquet")), fields).to_pylist()[0]
    assert np.frombuffer(last["routes"], "uint8").max() < 8
