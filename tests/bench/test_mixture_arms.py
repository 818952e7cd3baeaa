"""The arms: a killed one ends as one that ran through, closed gates stop every arm, a model travels without a loss."""

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from bench.claims.algorithm_1 import Arm
from bench.claims.mixture import arms, continued, measuring, pieces, studies
from bench.claims.mixture.continued import Continued, Paused
from oapl_core.errors import DataError, Diverged
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.objectives import Oapl
from oapl_core.objectives.clipped.grpo import GrpoTokenIs
from tests.bench.test_claims import machine, short
from tests.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", sharpness=5.0)


TIMED = ("seconds", "peak_memory_mb")
"""Metrics of a step that are of the machine."""


class Killed(Exception):
    """As if by a signal."""


class Fragile(Continued):
    """Is killed before its third chunk."""

    chunks = 0

    def _chunk(self, *given: Any) -> None:
        if self.chunks == 2:
            raise Killed
        self.chunks += 1
        super()._chunk(*given)


def ended(kind: type[Continued], arm: Arm, model: Path, folder: Path) -> tuple[Continued, int]:
    """An arm that is trained to its end, and how often it was killed."""
    (folder / "scratch").mkdir(parents=True)
    kills = 0
    while True:
        one = kind(arm, machine(model, folder / "answers"), folder / "scratch", folder / "state.pt")
        try:
            one.run(lambda line: None)
        except Killed:
            kills += 1
            continue
        return one, kills


@pytest.mark.parametrize(
    "arm",
    [
        short(Oapl(regression_temperature=0.1), 5, steps=8, evaluate_every=3),
        short(GrpoTokenIs(), 2, offset=2, steps=6, evaluate_every=4),
    ],
    ids=["lag", "off by one"],
)
def test_a_killed_arm_ends_as_one_that_ran_through(
    arm: Arm, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continued, "CHUNK", 2)
    whole, _ = ended(Continued, arm, model, tmp_path / "whole")
    killed, kills = ended(Fragile, arm, model, tmp_path / "killed")
    assert kills
    found, known = (
        [{k: v for k, v in row.items() if k not in TIMED} for row in one.metrics] for one in (killed, whole)
    )
    for mine, theirs in zip(found, known, strict=True):
        assert mine == theirs, {k for k in mine if mine[k] != theirs[k]}
    assert [row["policy_lag"] for row in whole.metrics] == (
        [0, 1, 2, 3, 4, 0, 1, 2] if arm.interval == 5 else [0, 1, 2, 3, 2, 3]
    )
    timed = ("cpu_sampling_s", "cpu_training_s", "cpu_sync_s")
    told = [[{k: v for k, v in row.items() if k not in timed} for row in one.evaluations] for one in (whole, killed)]
    assert told[0] == told[1]
    for name, weight in whole._weights().items():
        assert torch.equal(weight, killed._weights()[name])
    assert len(killed._snapshots) <= 1 + arm.offset


def test_time_is_up_and_nothing_is_lost(model: Path, tmp_path: Path) -> None:
    arm = short(Oapl(regression_temperature=0.1), 2, steps=2)
    made = machine(model, tmp_path / "kept")
    with pytest.raises(Paused):
        Continued(arm, made, tmp_path, tmp_path / "state.pt", until=0).run(lambda line: None)
    assert arms.train(made, {"a": arm}, tmp_path, until=0) is False
    assert arms.train(made, {"a": arm}, tmp_path, until=float("inf")) is True
    found = json.loads((tmp_path / "a.json").read_text())
    assert [row["step"] for row in found["evaluations"]] == [0, 2]
    assert (tmp_path / "models" / "a" / "model.safetensors").exists()
    before = (tmp_path / "a.json").stat().st_mtime_ns
    assert arms.train(made, {"a": arm}, tmp_path, until=0) is True
    assert (tmp_path / "a.json").stat().st_mtime_ns == before


def test_a_state_of_other_settings_is_not_continued(model: Path, tmp_path: Path) -> None:
    arm, made = short(Oapl(regression_temperature=0.1), 2, steps=4), machine(model, tmp_path / "kept")
    Continued(arm, made, tmp_path, tmp_path / "state.pt", chunk=2).run(lambda line: None)
    other = replace(arm, training={"learning_rate": 1e-3})
    with pytest.raises(DataError, match=r"state.pt: was begun with other settings; remove it to begin anew"):
        Continued(other, made, tmp_path, tmp_path / "state.pt")


def test_an_arm_that_diverges_is_there_with_what_it_had_and_the_next_is_trained(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm, made = short(Oapl(regression_temperature=0.1), 1, steps=2, evaluate_every=1), machine(model, tmp_path / "kept")
    real = Continued._chunk

    def _chunk(self: Continued, *given: Any) -> None:
        if self.arm.seed == 7 and self.step == 1:
            raise Diverged("the loss is not finite")
        real(self, *given)

    monkeypatch.setattr(Continued, "_chunk", _chunk)
    assert arms.train(made, {"bad": replace(arm, seed=7), "good": arm}, tmp_path, until=float("inf"))
    bad, good = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("bad", "good"))
    assert (bad["failure"], good["failure"]) == ("the loss is not finite", None)
    assert [[row["step"] for row in one["evaluations"]] for one in (bad, good)] == [[0, 1], [0, 1, 2]]
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["good"]


def test_closed_gates_stop_every_arm(model: Path, tmp_path: Path) -> None:
    path = tmp_path / f"gates-cores-{policy_hash(model)}.json"
    with pytest.raises(SystemExit, match="is missing: measure the base"):
        arms.require_open(tmp_path, "cores", model)
    path.write_text(json.dumps({"is_open": False}))
    with pytest.raises(SystemExit, match="not all gates are met"):
        arms.require_open(tmp_path, "cores", model)
    path.write_text(json.dumps({"is_open": True}))
    arms.require_open(tmp_path, "cores", model)
    with pytest.raises(SystemExit, match=r"rates\.json is missing"):
        arms.arms_of("train", "cores", 0, tmp_path, is_trial=False)


def test_fifteen_arms_differ_by_method_and_lag_alone() -> None:
    rates = dict.fromkeys(studies.METHODS, 1e-4) | {"rft": 5e-4}
    for scale in studies.SIZES:
        made = studies.arms(scale, 3, rates)
        assert {(name.split("-")[0], arm.interval) for name, arm in made.items()} == {
            (method, 2 if (method, lag) == ("grpo", 1) else lag) for method in studies.METHODS for lag in (1, 50, 400)
        }
        assert len(made) == 15
        assert {arm.offset for name, arm in made.items() if name != "grpo-lag1-seed3"} == {0}
        assert made["grpo-lag1-seed3"].offset == 2
        assert {arm.training["learning_rate"] for name, arm in made.items() if name.startswith("rft")} == {5e-4}
        assert len({(arm.steps, arm.groups_per_step, arm.group_size, arm.seed) for arm in made.values()}) == 1


def test_the_best_rate_is_the_one_of_validation() -> None:
    right = dict.fromkeys(studies.tuning("gpu"), 0.1)
    low, middle, high = studies.RATES
    right |= {f"oapl-rate{high:g}-seed1000": 0.3, f"topr-rate{middle:g}-seed1000": 0.2}
    assert studies.chosen(right) == dict.fromkeys(studies.METHODS, low) | {"oapl": high, "topr": middle}
    assert {arm.measured_on for arm in studies.tuning("gpu").values()} == {"validation"}


def test_hours_by_hand() -> None:
    gates = {"tokens": {"mixture usual": 100.0}, "prompt_tokens": 50.0}
    text = arms.costs("cores", gates, Namespace(sampled=1000.0, trained=2000.0, sync=0.0))
    sequences = 5 * 400 * 8 * 8
    asked = 5 * 120 * (4 * 2 + 4)
    hours = ((sequences + asked) * 100 / 1000 + sequences * 150 / 2000) / 3600
    row = f"| 5 of L = 400 | {(sequences + asked) / 1e4:.1f} | {sequences * 150 / 1e6:.1f} | {hours:.1f} |"
    assert row in text.splitlines()


def halved(folder: Path, to: Path) -> Path:
    to.mkdir()
    for path in folder.iterdir():
        if path.name != "model.safetensors":
            (to / path.name).write_bytes(path.read_bytes())
    weights = {k: v.to(torch.bfloat16).float() for k, v in load_file(folder / "model.safetensors").items()}
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    return to


def test_a_model_travels_in_pieces(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = halved(model, tmp_path / "base")
    monkeypatch.setattr(pieces, "LARGEST", 10_000)
    pieces.pack(folder, tmp_path / "out")
    made = sorted((tmp_path / "out").glob("base.0*"))
    assert len(made) > 2
    assert max(path.stat().st_size for path in made) == 10_000
    again = pieces.unpack(tmp_path / "out" / "base.json")
    assert policy_hash(again) == policy_hash(folder)
    before, after = load_file(folder / "model.safetensors"), load_file(again / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)
    made[1].write_bytes(made[1].read_bytes()[:-1] + b"?")
    with pytest.raises(SystemExit, match=r"base\.001: is missing or damaged"):
        pieces.unpack(tmp_path / "out" / "base.json")


def test_weights_that_would_change_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="more than 16 bits"):
        pieces.pack(model, tmp_path / "out")


def test_the_last_measurement_counts_by_hand(model: Path, tmp_path: Path) -> None:
    made = machine(model, tmp_path)
    rows = [{"problem_id": "heldout0", "structure": "programs usual: add"}]
    (found,) = measuring.widths(made, model, rows, 32)
    assert found["right"] > 0
    assert found["different"] == 1  # every correct text is "0"
    assert len(found["tokens"]) == 32
    assert (found["n_sharp"], found["cut"], found["entropy"]) == (2, 0, 5.0)
