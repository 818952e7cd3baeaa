"""Jobs on a machine without run folders: what every arm answers is counted, once for each different answer."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.claims import factorial, many_arms, sampled
from bench.claims.many_arms import Job, run
from bench.claims.sampled import Way
from tests.tiny_model import write_tiny_model

WAYS = (Way("t1", 1.0, 1.0, 3), Way("greedy", 0.0, 1.0, 1))


@pytest.fixture
def carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A base with four groups for two steps, three problems of each split that is measured on."""
    monkeypatch.setattr(sampled, "WAYS", WAYS)
    monkeypatch.setattr(many_arms, "GROUPS_PER_STEP", 2)
    monkeypatch.setattr(many_arms, "PLANS", {"passes": (2, 3)})
    write_tiny_model(tmp_path / "models" / "tiny", sharpness=5.0)
    rows: list[dict[str, Any]] = [
        {"problem": f"t{group}", "group": group, "response_ids": [20 + s, 21], "logprobs": [-3.0, -3.0]}
        | {"reward": float(s % 2), "correct": bool(s % 2)}
        for group in range(4)
        for s in range(4)
    ]
    prompts = {split: {f"{split[0]}{i}": [7 + i, 8] for i in range(n)} for split, n in (("train", 4), ("heldout", 3))}
    prompts["validation"] = {"v0": [9, 9]}
    facts = {"bed": "tiny", "base": "tiny-seed0", "seed": 5, "model": "models/tiny", "max_tokens": 4, "end_ids": [2]}
    facts |= {"prompts": prompts, "rollouts": rows, "rollouts_sha256": "abc"}
    (tmp_path / "tiny-seed0.json.gz").write_bytes(gzip.compress(json.dumps(facts).encode()))
    return tmp_path


def test_every_answer_of_every_arm_is_counted(carried: Path, tmp_path: Path) -> None:
    job = Job("tiny-seed0", "passes", 0, 33)
    run(carried, job, tmp_path)
    with np.load(tmp_path / f"{job.name}.npz") as found:
        about, columns = json.loads(str(found["about"])), {name: found[name] for name in found if name != "about"}
    names = [arm.name for arm in factorial.arms()[::33]]
    assert about["arms"] == ["base", *names] and about["problems"] == ["v0", "h0", "h1", "h2"]
    assert about["rollouts"] == "abc" and about["base"] == "tiny-seed0"
    for arm in range(len(about["arms"])):
        for step in (0,) if arm == 0 else (2, 6):
            for number, way in enumerate(WAYS):
                rows = (columns["arm"] == arm) & (columns["step"] == step) & (columns["way"] == number)
                per_problem = np.bincount(
                    columns["answers"][columns["answer"][rows], 0], weights=columns["count"][rows], minlength=4
                )
                assert per_problem.tolist() == [way.answers] * 4
    assert len(np.unique(columns["answers"], axis=0)) == len(columns["answers"])


def test_every_method_has_nine_settings_and_names_are_unique() -> None:
    arms = factorial.arms()
    assert len({arm.name for arm in arms}) == len(arms) == 9 * len(factorial.METHODS)
    counts = {method: sum(arm.name.split()[0] == method for arm in arms) for method in factorial.METHODS}
    assert set(counts.values()) == {9}
