"""PPO-EWMA through real DeepSpeed: a plain torch loop's weights, exact resume, ranks, rounds; what is refused."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from oapl_core.errors import ConfigError
from oapl_core.planning.memory import rank_memory
from oapl_core.planning.model_size import ModelSize
from oapl_core.run_folder.run import METRICS_FILE, Run
from oapl_core.settings.experiment_file import parse_experiment
from oapl_core.settings.training import CPU_TILE, TrainingConfig
from oapl_core.training.job import make_job
from oapl_core.training.saving.disk import needed
from oapl_extras.plan.engine_memory import bytes_beside
from tests.core.objectives.test_family import REST
from tests.core.training.forked_training import trained
from tests.core.training.made_round import made_groups, make_run, train_in_a_process, write_groups
from tests.core.training.plain_steps import PlainRound, Row, log_probs
from tests.core.training.test_change_of_ranks import elsewhere, stop_after
from tests.core.training.test_continuation import gap, in_one_round, prepared, words
from tests.core.training.test_continuation import rows as rows

DECAY, LOW, HIGH, BOUND = 0.6, 0.01, 0.02, 1.05
EPOCHS = 2
SETTINGS: dict[str, Any] = {
    "name": "ppo_ewma",
    "decay": DECAY,
    "clip_low": LOW,
    "clip_high": HIGH,
    "largest_ratio": BOUND,
}
TRAINING: dict[str, Any] = {"batch_size": 6, "learning_rate": 3e-3, "save_steps": 1, "trackers": [], "peak_tflops": 1.0}


@pytest.fixture(scope="module")
def made(sharp_model: Path) -> list[Row]:
    draw = torch.Generator().manual_seed(0)
    return [
        row
        | {"behavior_logprobs": [x + 0.02 * float(torch.randn((), generator=draw)) for x in row["behavior_logprobs"]]}
        for row in made_groups(sharp_model)
    ]


def run_of(folder: Path, model: Path, made: list[Row], **training: Any) -> Run:
    run = make_run(folder, model, EPOCHS, SETTINGS, **(TRAINING | training))
    write_groups(run, made)
    return run


class Averaged(PlainRound):
    """The authors' loss (openai/ppo-ewma, compute_losses), around the average of all weights that were."""

    clipped = 0

    def averaged(self) -> Any:
        weights = [DECAY ** (len(self.history) - 1 - i) for i in range(len(self.history))]
        model = AutoModelForCausalLM.from_pretrained(self.run.policy(0))
        mean = {
            name: torch.stack([w * one[name].double() for w, one in zip(weights, self.history, strict=True)]).sum(0)
            / sum(weights)
            for name in self.history[0]
        }
        model.load_state_dict({name: x.float() for name, x in mean.items()})
        return model

    def step(self, batch: list[int], rate: float) -> None:
        rows = [self.rows[i] for i in batch]
        with torch.no_grad():
            old = log_probs(self.averaged(), rows)
        loss, tokens = torch.zeros((), dtype=torch.float64), 0
        for i, row, new_T, old_T in zip(batch, rows, log_probs(self.model, rows), old, strict=True):
            behavior_T = torch.tensor(row["behavior_logprobs"], dtype=torch.float64)
            adjusted_T = torch.maximum(behavior_T, new_T.detach() - math.log(BOUND))
            ratio_T = new_T - old_T
            clipped_T = ratio_T.clamp(math.log(1 - LOW), math.log(1 + HIGH))
            a = self.advantages[i]
            first = -a * (new_T - adjusted_T).exp()
            second = -a * (clipped_T + old_T - adjusted_T).exp()
            self.clipped += int((second > first).sum())
            loss, tokens = loss + torch.maximum(first, second).sum(), tokens + len(new_T)
        self.update(loss / tokens, rate)


def weights_of(run: Run, epoch: int = EPOCHS) -> dict[str, torch.Tensor]:
    return dict(load_file(run.checkpoint(0, epoch) / "model.safetensors"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, sharp_model: Path, made: list[Row]) -> Averaged:
    one = Averaged(run_of(tmp_path_factory.mktemp("plain"), sharp_model, made), made, EPOCHS)
    one.steps(one.step)
    assert one.clipped > 50, "or the average would mean nothing"
    return one


def assert_as_plain(run: Run, plain: Averaged) -> None:
    found = weights_of(run)
    last = plain.history[-1]
    differences = [float((found[name] - last[name]).abs().max()) for name in found]
    moved = max(float((last[name] - plain.history[0][name]).abs().max()) for name in found)
    assert max(differences) < 2e-5 < 1e-3 * moved / 0.02, (max(differences), moved)
    steps = (run.checkpoint(0, EPOCHS) / METRICS_FILE).read_text().splitlines()
    assert any(json.loads(line)["clipped_tokens_share"] > 0.05 for line in steps)


@pytest.mark.slow
def test_deepspeed_gives_the_weights_of_a_plain_loop_and_a_killed_round_the_same_bits(
    tmp_path: Path, sharp_model: Path, made: list[Row], plain: Averaged
) -> None:
    whole, killed = (run_of(tmp_path / name, sharp_model, made) for name in ("whole", "killed"))
    output = trained(f"{whole.root}:0", f"{killed.root}:0:2", f"{killed.root}:0")
    assert "epochs done: 0 of 2, and " in output, "killed within the first epoch"
    assert_as_plain(whole, plain)
    for epoch in (1, 2):
        files = [run.checkpoint(0, epoch) / "model.safetensors" for run in (whole, killed)]
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_two_ranks_of_any_zero_stage_give_the_weights_of_a_plain_loop(
    tmp_path: Path, sharp_model: Path, made: list[Row], plain: Averaged, stage: int
) -> None:
    run = run_of(tmp_path, sharp_model, made, processes=2, zero_stage=stage)
    train_in_a_process(run)
    assert_as_plain(run, plain)


@pytest.mark.slow
def test_an_average_continues_with_other_ranks_and_another_zero_stage(
    tmp_path: Path, sharp_model: Path, made: list[Row], plain: Averaged
) -> None:
    run = run_of(tmp_path, sharp_model, made, processes=2, zero_stage=3)
    stop_after(run, 3)
    run = elsewhere(run, processes=1, zero_stage=1)
    # the signal may arrive within the first epoch's last step
    assert re.search("epochs done: (0 of 2, and|1 of 2)", train_in_a_process(run))
    assert_as_plain(run, plain)


@pytest.mark.slow
def test_rounds_that_share_an_optimiser_share_the_average(tmp_path: Path, sharp_model: Path, rows: list[Row]) -> None:
    options = {"objective": SETTINGS, "learning_rate": 3e-3}
    together = in_one_round(tmp_path / "together", sharp_model, rows, 2, **options)
    continued = prepared(tmp_path / "rounds", sharp_model, rows, 2, optimizer_state="continued", **options)
    trained(*words(together), *words(continued))
    for number in range(2):
        assert gap(together.checkpoint(0, number + 1), continued.policy(number + 1)) == 0, "to the bit"


def test_what_the_average_takes_is_counted(tmp_path: Path, sharp_model: Path, made: list[Row]) -> None:
    size = ModelSize.like(1e9)
    for given, gib in (({}, 4e9 / 2), ({"zero_stage": 0, "dtype": "float32"}, 4e9)):
        training = TrainingConfig.model_validate(given)
        without, found = (rank_memory(training, size, 2, 64, CPU_TILE, beside=beside) for beside in (0, 4))
        assert found.total - without.total == found.optimizer - without.optimizer == pytest.approx(gib)
    run = run_of(tmp_path, sharp_model, made)
    assert make_job(run, 0).objective.bytes_beside == bytes_beside(run.config.objectives) == (4, 4)
    assert needed(sharp_model, 0, 4).state_bytes == pytest.approx(
        16 / 12 * needed(sharp_model, 0).state_bytes, rel=1e-3
    )


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        ({"decay": 1.0}, "`objective.decay`: Input should be less than 1"),
        ({"largest_ratio": 0}, "`objective.largest_ratio`: Input should be greater than 0"),
        ({"start_anchor": {}}, "`objective.start_anchor`: ppo_ewma renews pi_old within the round"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(objective: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        parse_experiment({**REST, "objective": {"name": "ppo_ewma", **objective}}, "x.toml")
    assert "\n" not in str(raised.value)
