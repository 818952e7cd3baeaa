"""An arm that samples its own rollouts answers like those that share a file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.claims import factorial, fresh, sampled
from bench.claims.many_arms import Answers, loaded
from tests.bench.test_claims import machine, model
from tests.bench.test_many_arms import WAYS, counted, read

__all__ = ["model"]  # a fixture


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Answers:
    monkeypatch.setattr(sampled, "WAYS", WAYS)
    prompts = {"heldout": {"h0": [7, 8], "h1": [8, 8]}}
    facts = {"bed": "tiny", "base": "tiny-seed0", "seed": 5, "max_tokens": 4, "end_ids": [2], "prompts": prompts}
    return Answers(facts, ["grpo-off-by-one rate=0.001"], "heldout", WAYS)


def started(kept: Answers, model: Path, folder: Path) -> Any:
    one = next(arm for arm in factorial.fresh() if arm.rate == 0.001)
    arm = fresh.off_by_one(one, 5, (2, 6), kept, loaded(model, torch.device("cpu")))
    return arm.start(machine(model, folder / "kept"), folder)


def test_it_samples_every_second_step_from_weights_two_steps_old_and_answers_when_the_others_do(
    kept: Answers, model: Path, tmp_path: Path
) -> None:
    arm = started(kept, model, tmp_path)
    arm.run(lambda line: None)
    assert [row["policy_lag"] for row in arm.metrics] == [0, 1, 2, 3, 2, 3]
    kept.write(tmp_path / "a.npz", {"job": "tiny-seed0.long.fresh"})
    _, columns = read(tmp_path / "a.npz")
    assert set(columns["step"]) == {2, 6}
    for step in (2, 6):
        for number, way in enumerate(WAYS):
            assert counted(columns, 1, step, number, 2) == [way.answers] * 2
    last = torch.cat([p.flatten() for p in arm.arm.measured.parameters()])
    assert torch.equal(last, torch.cat([p.flatten() for p in arm.stored.model.parameters()]))


def test_an_arm_that_diverges_has_no_answers_and_ends_alone(
    kept: Answers, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arm = started(kept, model, tmp_path)
    with torch.no_grad():
        next(iter(arm.stored.model.parameters()))[0] = np.nan
    fresh._run(arm, "tiny", 0.0)
    assert "tiny: diverged after 0 updates" in capsys.readouterr().out
    arm.step = 2
    arm.evaluate()  # a step may also leave weights without having had a loss that is not finite
    assert not kept._rows


def test_it_has_the_problems_that_the_others_learn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh, "PASS", 1)
    prompts = {f"p{g}": [g] for g in range(17)}
    rollouts = [
        # the first eight problems have wrong answers alone, so no arm learns from them; nobody carried the last
        {"problem": f"p{g}", "group": g, "response_ids": [7], "logprobs": [-1.0], "reward": r, "correct": r == 1.0}
        for g in range(16)
        for r in (0.0, 1.0 if g > 7 else 0.0)
    ]
    found = fresh.of_a_pass({"prompts": {"train": prompts}, "rollouts": rollouts})
    assert found == {f"p{g}": [g] for g in range(8, 16)}


def test_twelve_rates_are_those_of_the_methods_without_a_temperature() -> None:
    of_topr = {arm.rate for arm in [*factorial.arms(), *factorial.wider()] if arm.name.startswith("topr rate")}
    assert {arm.rate for arm in factorial.fresh()} == of_topr and len(of_topr) == 12
    assert not {arm.name for arm in factorial.fresh()} & {arm.name for arm in factorial.every()}


def test_the_long_plan_wants_a_chosen_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = ["fresh", str(tmp_path), "--runs", str(tmp_path), "--to", str(tmp_path), "--plan", "long", "--bases", "a"]
    monkeypatch.setattr("sys.argv", line)
    with pytest.raises(SystemExit, match="--chosen FILE is missing"):
        fresh.main()
    (tmp_path / "chosen.json").write_text(json.dumps({"chosen": [{"arm": "topr rate=0.001"}]}))
    monkeypatch.setattr("sys.argv", [*line, "--chosen", str(tmp_path / "chosen.json")])
    with pytest.raises(SystemExit, match="has no rate of grpo-off-by-one; run --plan tuning"):
        fresh.main()


def test_again_takes_the_best_four_of_a_base_and_long_the_chosen_one(tmp_path: Path) -> None:
    rates = [arm.name for arm in factorial.fresh()]
    tried: list[Any] = [{"arm": name, "by_base": {"tiny-seed6": 0.01 * i}} for i, name in enumerate(rates)]
    tried.append({"arm": "topr rate=0.0005", "by_base": {"tiny-seed6": 0.9}})
    (tmp_path / "f.json").write_text(json.dumps({"chosen": [{"arm": rates[3]}], "tried": tried}))
    assert [arm.name for arm in fresh.arms_of("again", tmp_path / "f.json", "tiny-seed6")] == rates[:-5:-1]
    assert [arm.name for arm in fresh.arms_of("long", tmp_path / "f.json", "")] == [rates[3]]
    with pytest.raises(SystemExit, match="has no rate of grpo-off-by-one"):
        fresh.arms_of("again", tmp_path / "f.json", "tiny-seed5")
