"""The three-armed bandit of arXiv 2509.24203, exactly: ``python -m bench.bandit [--json FILE]``.

A softmax policy over three arms, rewards r, rollouts always from one behaviour policy b. Expectations are sums over the
arms, so nothing is random and no model is needed. Each method's gradient is the one that ``oapl_core.objectives`` takes
in expectation over an infinite group: the baseline is the behavior's mean reward (or V of eq. 2).

    REINFORCE  dl/dtheta = sum_a b_a (r_a - mean r) (1_a - pi)      its fixed points weigh arms by b_a (r_a - mean r),
                                                                    so a common good arm beats a rare better one
    OAPL       minimises sum_a b_a (beta2 ln(pi_a/b_a) - (r_a - V))^2: for beta1 = beta2
                                                                    pi = b exp(r/beta2)/Z, and the best arm wins

Plain REINFORCE on off-policy data therefore converges to an arm that is not the best; OAPL does not, because its
regression has the behaviour policy on both sides.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
REWARD = np.array([0.0, 0.8, 1.0])
BEHAVIOR = np.array([0.3, 0.6, 0.1])
"""The best arm is rare, the second best common."""


def softmax(theta: Array) -> Array:
    """Of a vector."""
    shifted = np.exp(theta - theta.max())
    weights: Array = shifted / shifted.sum()
    return weights


def reinforce_direction(theta: Array, behavior: Array = BEHAVIOR, reward: Array = REWARD) -> Array:
    """E_b[ (r - E_b r) grad ln pi ]: rollouts of ``behavior``, no importance ratio."""
    weight = behavior * (reward - behavior @ reward)
    direction: Array = weight - weight.sum() * softmax(theta)
    return direction


def oapl_direction(theta: Array, beta1: float, beta2: float) -> Array:
    """Minus the gradient of E_b ( beta2 ln(pi/b) - (r - V) )^2 with V = beta1 ln E_b exp(r/beta1), over 2 beta2."""
    behavior, reward, policy = BEHAVIOR, REWARD, softmax(theta)
    value = beta1 * np.log(behavior @ np.exp(reward / beta1))
    residual = beta2 * np.log(policy / behavior) - (reward - value)
    weight = -behavior * residual
    direction: Array = weight - weight.sum() * policy
    return direction


def trained(method: str, steps: int, rate: float = 1.0, beta1: float = 0.05, beta2: float = 0.05) -> Array:
    """Arm probabilities after each step, [steps + 1, 3], starting at the behaviour policy."""
    theta, path = np.log(BEHAVIOR), [BEHAVIOR]
    for _ in range(steps):
        direction = reinforce_direction(theta) if method == "reinforce" else oapl_direction(theta, beta1, beta2)
        theta = theta + rate * direction
        path.append(softmax(theta))
    return np.array(path)


def figure(steps: int = 2000, every: int = 20) -> dict[str, object]:
    """The figure's numbers: probability of each arm, and the expected reward, by step."""
    lines: dict[str, object] = {"reward": REWARD.tolist(), "behavior": BEHAVIOR.tolist(), "every": every}
    for method in ("reinforce", "oapl"):
        path = trained(method, steps)[::every]
        lines[method] = {"arms": path.round(5).tolist(), "expected_reward": (path @ REWARD).round(5).tolist()}
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, help="write the figure's numbers here")
    target = parser.parse_args().json
    if target:
        target.write_text(json.dumps(figure()) + "\n")
    for method in ("reinforce", "oapl"):
        last = trained(method, 2000)[-1]
        print(f"{method:10} arms {np.array2string(last, precision=3)}  expected reward {last @ REWARD:.3f}")
    # Residuals can be zero at a normalised distribution for beta1 = beta2 only (docs/objectives.md).
    last = trained("oapl", 20000, beta1=1.0)[-1]
    print(f"oapl, beta1 = 1 {np.array2string(last, precision=3)}  expected reward {last @ REWARD:.3f}")


if __name__ == "__main__":
    main()
