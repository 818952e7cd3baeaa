"""SFPO through real DeepSpeed: a plain torch loop's weights, exact resume, ranks, with PPO-EWMA; what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter
from safetensors.torch import load_file

from oapl_core.errors import ConfigError
from oapl_core.objectives import Objective
from oapl_core.objectives.options.slow_fast import SlowFast
from oapl_core.run_folder.run import METRICS_FILE, Run
from oapl_core.settings.experiment_file import parse_experiment
from oapl_core.training.updates.slow_fast import Entropies
from tests.core.objectives.test_family import REST
from tests.core.training.forked_training import trained
from tests.core.training.made_round import made_groups, make_run, train_in_a_process, write_groups
from tests.core.training.plain_steps import PlainRound, Row, log_probs
from tests.core.training.test_averaged import SETTINGS as AVERAGED
from tests.core.training.test_averaged import TRAINING, Averaged

EPOCHS = 2
OPTION: dict[str, Any] = {"fast_steps": 2, "alpha": 0.6, "stop_at": 0.65, "window": 4}
GRPO: dict[str, Any] = {"name": "grpo", "slow_fast": OPTION}


@pytest.fixture(scope="module")
def made(sharp_model: Path) -> list[Row]:
    return made_groups(sharp_model)


def run_of(folder: Path, model: Path, made: list[Row], objective: dict[str, Any], **training: Any) -> Run:
    run = make_run(folder, model, EPOCHS, objective, **(TRAINING | {"learning_rate": 1e-3} | training))
    write_groups(run, made)
    return run


class Clipped(PlainRound):
    """GRPO by PPO's surrogate, with b in the place of pi_old."""

    def step(self, batch: list[int], rate: float) -> None:
        rows, loss = [self.rows[i] for i in batch], torch.zeros((), dtype=torch.float64)
        for i, row, new_T in zip(batch, rows, log_probs(self.model, rows), strict=True):
            ratio_T = (new_T - torch.tensor(row["behavior_logprobs"], dtype=torch.float64)).exp()
            a = self.advantages[i]
            loss = loss - torch.minimum(ratio_T * a, ratio_T.clamp(0.8, 1.2) * a).sum()
        self.update(loss / len(rows), rate)


def entropy(plain: PlainRound, batch: list[int]) -> float:
    """Mean over the response tokens of ``batch``, from whole softmaxes."""
    found = []
    for row in (plain.rows[i] for i in batch):
        ids = torch.tensor([row["prompt_ids"] + row["response_ids"]])
        with torch.no_grad():
            p_TV = plain.model(ids).logits[0, len(row["prompt_ids"]) - 1 : -1].double().softmax(1)
        found.append(-(p_TV * p_TV.log()).sum(1))
    return float(torch.cat(found).mean())


def slow_fast(plain: Any) -> list[int]:
    """Make the round's steps as the paper's three stages; returns the fast steps of each."""
    made, seen = list[int](), list[float]()
    weights = list(plain.model.parameters())

    def step(batch: list[int], rate: float) -> None:
        ended = bool(made) and made[-1] == 0
        window = seen[-OPTION["window"] :]
        if len(window) == OPTION["window"]:
            ended |= (window[-1] - np.mean(window)) / (np.std(window) + 1e-9) >= OPTION["stop_at"]
        fast = 0 if ended else OPTION["fast_steps"]
        before = [weight.detach().clone() for weight in weights]
        for _ in range(fast):
            plain.step(batch, rate)
        for weight, start in zip(weights, before, strict=True):
            if fast:
                weight.data = start + OPTION["alpha"] * (weight.data - start)
        seen.append(entropy(plain, batch))
        plain.step(batch, rate)
        made.append(fast)

    plain.steps(step)
    return made


def weights_gap(run: Run, plain: PlainRound) -> float:
    found, last = load_file(run.checkpoint(0, EPOCHS) / "model.safetensors"), plain.history[-1]
    assert max(float((last[name] - plain.history[0][name]).abs().max()) for name in found) > 5e-3, "it moved"
    return max(float((found[name] - last[name]).abs().max()) for name in found)


def fast_steps(run: Run) -> list[int]:
    files = [run.checkpoint(0, epoch) / METRICS_FILE for epoch in range(1, EPOCHS + 1)]
    return [json.loads(line)["fast_steps"] for file in files for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, sharp_model: Path, made: list[Row]) -> tuple[Clipped, list[int]]:
    one = Clipped(run_of(tmp_path_factory.mktemp("plain"), sharp_model, made, GRPO), made, EPOCHS)
    fast = slow_fast(one)
    assert 0 < fast.index(0) < len(fast) - 1, fast
    return one, fast


@pytest.mark.slow
def test_deepspeed_gives_the_weights_of_a_plain_loop_and_a_killed_round_the_same_bits(
    tmp_path: Path, sharp_model: Path, made: list[Row], plain: tuple[Clipped, list[int]]
) -> None:
    whole, killed = (run_of(tmp_path / name, sharp_model, made, GRPO) for name in ("whole", "killed"))
    output = trained(f"{whole.root}:0", f"{killed.root}:0:2", f"{killed.root}:0")
    assert "epochs done: 0 of 2, and " in output, "killed within the first epoch"
    assert fast_steps(whole) == fast_steps(killed) == plain[1]
    assert weights_gap(whole, plain[0]) < 2e-5
    for epoch in (1, 2):
        files = [run.checkpoint(0, epoch) / "model.safetensors" for run in (whole, killed)]
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_two_ranks_of_any_zero_stage_give_the_weights_of_a_plain_loop(
    tmp_path: Path, sharp_model: Path, made: list[Row], plain: tuple[Clipped, list[int]], stage: int
) -> None:
    run = run_of(tmp_path, sharp_model, made, GRPO, processes=2, zero_stage=stage)
    train_in_a_process(run)
    assert fast_steps(run) == plain[1]
    assert weights_gap(run, plain[0]) < 2e-5


@pytest.mark.slow
def test_an_average_follows_each_update_of_a_step(tmp_path: Path, sharp_model: Path, made: list[Row]) -> None:
    both = {**AVERAGED, "slow_fast": OPTION}
    run, other = (run_of(tmp_path / name, sharp_model, made, both) for name in ("deepspeed", "plain"))
    train_in_a_process(run)
    one = Averaged(other, made, EPOCHS)
    assert slow_fast(one) == fast_steps(run)
    assert weights_gap(run, one) < 2e-5


def test_fast_steps_end_for_good_with_an_entropy_that_is_high_for_its_window() -> None:
    settings, kept = SlowFast(window=3, stop_at=1.2), Entropies()
    for value, ends in ((2.0, False), (9.0, False), (2.0, False), (1.0, False), (1.5, False), (1.0, False)):
        kept.take(value, settings)
        assert kept.has_ended == ends
    # of 1.5, 1.0, 2.2: (2.2 - 1.5667) / 0.4922 is 1.287
    for value in (2.2, 0.0):
        kept.take(value, settings)
        assert kept == Entropies([*kept.values[:2], value], True)
    assert kept.values == [1.0, 2.2, 0.0]
    never = Entropies()
    for value in (1.0, 1.0, 9.0):
        never.take(value, SlowFast(window=3, stop_at=None))
    assert not never.has_ended


def test_the_weights_before_a_step_are_counted_in_memory_alone() -> None:
    made = TypeAdapter(Objective).validate_python
    assert made({"name": "oapl", "slow_fast": {}}).loaded("behavior").bytes_beside == (4, 0)
    assert made({"name": "ppo_ewma", "slow_fast": {}}).loaded("behavior").bytes_beside == (8, 4)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"alpha": 0}, "`objective.slow_fast.alpha`: Input should be greater than 0"),
        ({"fast_steps": 0}, "`objective.slow_fast.fast_steps`: Input should be greater than 0"),
        ({"window": 1}, "`objective.slow_fast.window`: Input should be greater than or equal to 2"),
        ({"alhpa": 1}, "unknown key `objective.slow_fast.alhpa`"),
    ],
)
def test_wrong_options_are_refused_in_one_line(option: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        parse_experiment({**REST, "objective": {"name": "oapl", "slow_fast": option}}, "x.toml")
    assert "\n" not in str(raised.value)
