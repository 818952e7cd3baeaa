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

WAYS = (Way("t1", 1.0, 1.0, 3), Way("t06", 0.6, 0.95, 2), Way("greedy", 0.0, 1.0, 1))


@pytest.fixture
def carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A base with four groups for two steps, three problems of each split that is measured on."""
    monkeypatch.setattr(sampled, "WAYS", WAYS)
    monkeypatch.setattr(sampled, "TUNED_BY", WAYS[1])
    monkeypatch.setattr(many_arms, "GROUPS_PER_STEP", 2)
    monkeypatch.setattr(many_arms, "PASS", 2)
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


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    with np.load(path) as found:
        return json.loads(str(found["about"])), {name: found[name] for name in found if name != "about"}


def counted(columns: dict[str, Any], arm: int, step: int, way: int, problems: int) -> list[int]:
    """Answers of an arm to each problem."""
    rows = (columns["arm"] == arm) & (columns["step"] == step) & (columns["way"] == way)
    of_problem = columns["answers"][columns["answer"][rows], 0]
    found: list[int] = np.bincount(of_problem, weights=columns["count"][rows], minlength=problems).astype(int).tolist()
    return found


def test_tuning_tries_settings_on_validation_problems_at_one_temperature(carried: Path, tmp_path: Path) -> None:
    job = Job("tiny-seed0", "tuning", 0, 22)
    run(carried, job, tmp_path)
    about, columns = read(tmp_path / f"{job.name}.npz")
    assert about["arms"] == ["base", *(arm.name for arm in factorial.arms()[::22])] and about["problems"] == ["v0"]
    assert about["rollouts"] == "abc" and about["base"] == "tiny-seed0"
    assert set(columns["way"]) == {1} and len(about["arms"]) > 2
    for arm in range(len(about["arms"])):
        assert counted(columns, arm, 2 if arm else 0, 1, 1) == [2]


def test_every_answer_of_the_chosen_arms_is_counted(carried: Path, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen.json"
    names = ["oapl beta2=0.1 rate=0.001", "topr rate=0.004", "clip beta2=0.1 rate=0.001"]
    chosen.write_text(json.dumps({"chosen": [{"arm": name} for name in names]}))
    job = Job("tiny-seed0", "three-passes", 0, 1)
    run(carried, job, tmp_path, chosen)
    about, columns = read(tmp_path / f"{job.name}.npz")
    assert about["arms"] == ["base", *names[:2]] and about["problems"] == ["h0", "h1", "h2"]
    for arm in range(3):
        for step in (2, 6) if arm else (0,):
            for number, way in enumerate(WAYS):
                assert counted(columns, arm, step, number, 3) == [way.answers] * 3
    assert len(np.unique(columns["answers"], axis=0)) == len(columns["answers"])
    one = Job("tiny-seed0", "one-pass", 0, 1)
    run(carried, one, tmp_path, chosen)
    about, columns = read(tmp_path / f"{one.name}.npz")
    assert about["arms"] == ["base", names[2]] and set(columns["step"]) == {0, 2}
    with pytest.raises(SystemExit, match="--chosen FILE is missing"):
        run(carried, one, tmp_path)


def test_what_is_there_is_left_alone_and_a_failure_is_said(
    carried: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [Job("tiny-seed0", "one-pass", 0, 1)]
    with pytest.raises(SystemExit, match=r"tiny-seed0.one-pass.0-of-1 failed; their output is in"):
        many_arms.run_all(carried, jobs, tmp_path, 1, None)
    assert "--chosen FILE is missing" in (tmp_path / "tiny-seed0.one-pass.0-of-1.log").read_text()
    assert "jobs 1/1" in capsys.readouterr().out


def test_every_method_has_six_settings_and_names_are_unique() -> None:
    arms = factorial.arms()
    assert len({arm.name for arm in arms}) == len(arms) == 6 * len(factorial.METHODS)
    counts = {method: sum(arm.name.split()[0] == method for arm in arms) for method in factorial.METHODS}
    assert set(counts.values()) == {6}
