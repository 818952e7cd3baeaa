"""The exact three-armed bandit of arXiv 2509.24203: which arm each method ends at, with rollouts of a fixed policy."""

import numpy as np
import pytest
import torch

from bench.bandit import BEHAVIOR, REWARD, figure, oapl_direction, reinforce_direction, trained
from oapl_core.objectives import Inputs, Method, Oapl, StepSizes
from oapl_core.objectives.reinforce import Reinforce

ARMS = torch.tensor([0] * 3 + [1] * 6 + [2])
"""A group of ten rollouts in the behaviour policy's exact proportions."""


def direction(objective: Method, theta: np.ndarray) -> np.ndarray:
    """Minus the gradient of the objective's loss by the policy's parameters."""
    parameters = torch.tensor(theta, requires_grad=True)
    reward_S, group_S = torch.from_numpy(REWARD)[ARMS], torch.zeros(10, dtype=torch.int64)
    log_ratio_S1 = (parameters.log_softmax(0) - torch.from_numpy(BEHAVIOR).log())[ARMS][:, None]
    mask, advantage_S = torch.ones(10, 1, dtype=torch.bool), objective.advantages(reward_S, group_S)
    inputs = Inputs(log_ratio_S1, mask, advantage_S, reward_S, group_S, StepSizes(10, 1, 10))
    objective.loss(inputs).value.backward()
    assert parameters.grad is not None
    found: np.ndarray = -parameters.grad.numpy()
    return found


@pytest.mark.parametrize("theta", [np.log(BEHAVIOR), np.array([0.3, -1.0, 2.0])])
def test_the_directions_are_those_of_the_objectives(theta: np.ndarray) -> None:
    assert direction(Reinforce(), theta) == pytest.approx(reinforce_direction(theta), abs=1e-12)
    oapl = Oapl(value_temperature=0.05, regression_temperature=0.05)
    assert direction(oapl, theta) == pytest.approx(2 * 0.05 * oapl_direction(theta, 0.05, 0.05), abs=1e-12)


def test_plain_reinforce_converges_to_a_wrong_arm_and_oapl_to_the_optimum() -> None:
    reinforce, oapl = (trained(method, 2000)[-1] for method in ("reinforce", "oapl"))
    assert REWARD.argmax() == 2
    assert reinforce[1] > 0.999, "the common arm"
    optimum = BEHAVIOR * np.exp(REWARD / 0.05)
    assert oapl == pytest.approx(optimum / optimum.sum(), abs=1e-3)
    assert oapl.argmax() == 2
    assert oapl @ REWARD > 0.97 > reinforce @ REWARD


def test_the_optimum_is_where_oapl_stands_still() -> None:
    optimum = BEHAVIOR * np.exp(REWARD / 0.1)
    assert oapl_direction(np.log(optimum / optimum.sum()), 0.1, 0.1) == pytest.approx(np.zeros(3), abs=1e-15)


def test_with_another_beta_for_the_value_oapl_too_ends_at_the_second_best_arm() -> None:
    last = trained("oapl", 20000, beta1=1.0)[-1]
    assert last.argmax() == 1
    assert last @ REWARD == pytest.approx(0.852, abs=5e-4)  # the number of docs/benchmarks/claims.md


def test_the_figure_has_a_point_for_every_twentieth_step() -> None:
    found = figure(steps=100)
    assert len(found["oapl"]["expected_reward"]) == 6  # type: ignore[index]


@pytest.mark.slow
def test_where_a_regression_ends_is_what_its_value_says() -> None:
    """oapl.py: beta2 ln w + kappa w = r - V, kappa = E_b[r - V] + beta2 KL(b, pi): at least beta2 if V is shifted."""
    beta = 0.2
    for value, least in (("beta_shifted_mean", beta), ("mean", 0.0)):
        objective = Oapl.model_validate({"value": value, "regression_temperature": beta})
        theta = np.log(BEHAVIOR)
        for _ in range(4000):
            theta = theta + 2.0 * direction(objective, theta)
        policy = np.exp(theta) / np.exp(theta).sum()
        log_w = np.log(policy / BEHAVIOR)
        advantage = REWARD - BEHAVIOR @ REWARD + least
        kappa = least - beta * (BEHAVIOR @ log_w)
        # KL by its own sum, so that the two sides meet in no formula of the loss
        assert kappa == pytest.approx(least + beta * float(BEHAVIOR @ np.log(BEHAVIOR / policy)), abs=1e-12)
        assert kappa > least + 1e-3, "the policy has left b"
        assert beta * log_w + kappa * np.exp(log_w) == pytest.approx(advantage, abs=1e-6)
