"""The OAPL loss against its definition: transcription, hand-computed case, gradients, identities, invariances."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oapl_core.objectives import Inputs, Oapl, StepSizes
from oapl_core.objectives.oapl import oapl_loss

BETA1, BETA2 = 1.0, 0.05


def scene(seed: int = 0, groups: int = 5, size: int = 8) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-ratios [S, T] with zeros behind each response, rewards, groups."""
    generator = torch.Generator().manual_seed(seed)
    log_ratio_ST = torch.randn(groups * size, 13, generator=generator)
    length_S = torch.randint(1, 14, (groups * size,), generator=generator)
    log_ratio_ST[torch.arange(13) >= length_S[:, None]] = 0.0
    reward_S = (torch.rand(groups * size, generator=generator) < 0.4).float()
    return log_ratio_ST, reward_S, torch.arange(groups).repeat_interleave(size)


def transcription(log_ratio_ST: np.ndarray, reward_S: np.ndarray, group_S: np.ndarray) -> float:
    """Eq. 2 and 3 of the paper, literally."""
    total = 0.0
    for i in range(len(reward_S)):
        members = reward_S[group_S == group_S[i]]
        v = BETA1 * np.log(np.mean(np.exp(members / BETA1)))
        total += (BETA2 * np.sum(log_ratio_ST[i]) - (reward_S[i] - v)) ** 2
    return total / len(reward_S)


OBJECTIVE = Oapl(value_temperature=BETA1, regression_temperature=BETA2)


def loss_part(log_ratio_ST: torch.Tensor, advantage_S: torch.Tensor, sequences: int) -> torch.Tensor:
    """Of some sequences of a step; eq. 3 reads neither mask nor rewards nor groups."""
    none_S = torch.zeros(len(advantage_S))
    inputs = Inputs(log_ratio_ST, log_ratio_ST != 0, advantage_S, none_S, none_S, StepSizes(sequences, 1, 1))
    return OBJECTIVE.loss(inputs).value


def loss_of(log_ratio_ST: torch.Tensor, reward_S: torch.Tensor, group_S: torch.Tensor) -> torch.Tensor:
    return loss_part(log_ratio_ST, OBJECTIVE.advantages(reward_S, group_S), len(reward_S))


@pytest.mark.parametrize("seed", range(5))
def test_loss_is_the_numpy_transcription(seed: int) -> None:
    log_ratio_ST, reward_S, group_S = scene(seed)
    expected = transcription(log_ratio_ST.double().numpy(), reward_S.double().numpy(), group_S.numpy())
    assert float(loss_of(log_ratio_ST, reward_S, group_S)) == pytest.approx(expected, abs=1e-6, rel=1e-6)


def test_loss_of_a_hand_computed_group() -> None:
    # one of eight right: V = ln((e + 7) / 8) = .1946; at policy = behavior the loss is the mean squared advantage
    reward_S, group_S = torch.tensor([1.0] + [0.0] * 7), torch.zeros(8, dtype=torch.int32)
    loss = loss_of(torch.zeros(8, 3), reward_S, group_S)
    assert float(loss) == pytest.approx(((1 - 0.19457) ** 2 + 7 * 0.19457**2) / 8, abs=1e-5)
    # and a correct answer that became 2 nats likelier moves its residual by beta2 * 2
    moved = torch.zeros(8, 3)
    moved[0, :2] = 1.0
    change = ((BETA2 * 2 - (1 - 0.194567)) ** 2 - (1 - 0.194567) ** 2) / 8
    assert float(loss_of(moved, reward_S, group_S) - loss) == pytest.approx(change, abs=1e-6)


def test_gradient_is_a_finite_difference() -> None:
    log_ratio_ST, reward_S, group_S = scene(3)
    log_ratio_ST = log_ratio_ST.double().requires_grad_()
    loss_of(log_ratio_ST, reward_S, group_S).backward()
    gradient, step = log_ratio_ST.grad, 1e-4
    assert gradient is not None
    with torch.no_grad():
        for i, t in [(0, 0), (5, 2), (17, 1), (39, 0)]:
            up, down = log_ratio_ST.clone(), log_ratio_ST.clone()
            up[i, t] += step
            down[i, t] -= step
            numeric = float(loss_of(up, reward_S, group_S) - loss_of(down, reward_S, group_S)) / (2 * step)
            assert float(gradient[i, t]) == pytest.approx(numeric, rel=1e-6, abs=1e-9)


def test_at_the_behavior_policy_the_gradient_is_reinforce_with_baseline_v() -> None:
    _, reward_S, group_S = scene(1)
    advantage_S = OBJECTIVE.advantages(reward_S, group_S)
    log_ratio_S = torch.zeros(len(reward_S), dtype=torch.float64, requires_grad=True)
    oapl_loss(log_ratio_S, advantage_S, BETA2, len(reward_S)).backward()
    reinforce = advantage_S / len(reward_S)  # of (1/N) sum (r - V) ln pi
    torch.testing.assert_close(log_ratio_S.grad, -2 * BETA2 * reinforce)


def test_loss_and_gradient_vanish_at_the_regressions_solution() -> None:
    _, reward_S, group_S = scene(2)
    advantage_S = OBJECTIVE.advantages(reward_S, group_S)
    log_ratio_S = (advantage_S / BETA2).requires_grad_()
    loss = oapl_loss(log_ratio_S, advantage_S, BETA2, len(reward_S))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.0, abs=1e-24)
    assert log_ratio_S.grad is not None
    assert float(log_ratio_S.grad.abs().max()) == pytest.approx(0.0, abs=1e-14)


def test_a_group_without_advantage_is_a_pure_anchor_to_the_behavior_policy() -> None:
    log_ratio_ST = torch.full((8, 2), 0.5)
    loss = loss_of(log_ratio_ST, torch.ones(8), torch.zeros(8, dtype=torch.int32))
    assert float(loss) == pytest.approx((BETA2 * 1.0) ** 2)
    assert float(loss_of(torch.zeros(8, 2), torch.ones(8), torch.zeros(8, dtype=torch.int32))) == 0.0


@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_neither_order_nor_micro_batches_change_loss_or_gradient(rng: object, cut: int) -> None:
    log_ratio_ST, reward_S, group_S = scene(4)
    advantage_S = OBJECTIVE.advantages(reward_S, group_S)
    whole = log_ratio_ST.clone().requires_grad_()
    expected = loss_part(whole, advantage_S, 40)
    expected.backward()
    order = list(range(40))
    rng.shuffle(order)  # type: ignore[attr-defined]
    parted, total = log_ratio_ST.clone().requires_grad_(), 0.0
    for rows in (order[:cut], order[cut:]):
        loss = loss_part(parted[rows], advantage_S[rows], 40)
        loss.backward()
        total += float(loss.detach())
    assert total == pytest.approx(float(expected.detach()), rel=1e-12)
    torch.testing.assert_close(parted.grad, whole.grad, rtol=1e-6, atol=1e-9)


def test_advantages_carry_no_gradient() -> None:
    advantage_S = torch.ones(2, requires_grad=True)
    loss = oapl_loss(torch.zeros(2, requires_grad=True), advantage_S, BETA2, 2)
    loss.backward()
    assert advantage_S.grad is None


def test_the_global_count_cannot_be_smaller_than_the_given_sequences() -> None:
    with pytest.raises(ValueError, match="3 sequences cannot be part of a batch of 2"):
        oapl_loss(torch.zeros(3), torch.zeros(3), BETA2, 2)


def test_shapes_that_would_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        oapl_loss(torch.zeros(3), torch.zeros(3, 1), BETA2, 3)
