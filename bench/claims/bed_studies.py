"""The arms of test beds 2 to 4, by study and name: docs/benchmarks/claims_beds.md says what each asks.

Reads and writes nothing; `studies.py` has those of the demo.
"""

from collections.abc import Callable
from typing import Any

from bench.claims.algorithm_1 import Arm
from bench.claims.quantised import DOSES
from oapl_core.objectives import Method, Oapl
from oapl_core.objectives.clipped.grpo import GrpoTokenIs

METHODS: dict[str, Method] = {"oapl": Oapl(regression_temperature=0.1), "grpo": GrpoTokenIs()}


def countdown(seed: int) -> dict[str, Arm]:
    """The paper's own pair: GRPO off by one with two batches an update, OAPL with a lag of up to 50 steps."""
    shared: dict[str, Any] = {"steps": 100, "seed": seed, "answers": 1, "answers_last": 1}
    off_by_one = Arm(METHODS["grpo"], 2, offset=2, **shared)
    return {"oapl-lag50": Arm(METHODS["oapl"], 50, **shared), "grpo-off1": off_by_one}


def chains(seed: int) -> dict[str, Arm]:
    """One policy's rollouts of 20 steps three times, and off by one: what grows with the lag."""
    shared: dict[str, Any] = {"steps": 60, "groups_per_step": 4, "seed": seed, "evaluate_every": 20}
    shared |= {"answers": 1, "answers_last": 1, "measured_problems": 250}
    offline = {f"{name}-offline": Arm(one, 20, 3, **shared) for name, one in METHODS.items()}
    return {**offline, **{f"{name}-off1": Arm(one, 2, offset=2, **shared) for name, one in METHODS.items()}}


def doses(seed: int) -> dict[str, Arm]:
    """A copy for the engine every 10 steps, and either its log-probs or the trainer's; without a dose these are one."""
    shared: dict[str, Any] = {"steps": 60, "seed": seed, "evaluate_every": 60, "answers": 1, "answers_last": 2}
    rescored = {"reference": "reference"}
    arms = {f"{name}-exact": Arm(one, 10, **shared) for name, one in METHODS.items()}
    for dose, copy in reversed(DOSES.items()):
        for name, one in METHODS.items():
            arms[f"{name}-{dose}"] = Arm(one, 10, engine_copy=copy, **shared)
            arms[f"{name}-{dose}-rescored"] = Arm(one, 10, engine_copy=copy, training=rescored, **shared)
    return arms


STUDIES: dict[str, Callable[[int], dict[str, Arm]]] = {"countdown": countdown, "chains": chains, "doses": doses}
