"""Everything that differs between the methods, and only that: one file per objective (docs/objectives.md).

A new objective is one file with its settings class, and its name in the list below. Or it is a class anywhere else,
by `module:Class` or an installed package's name for it (OwnObjective).
"""

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, SerializeAsAny, ValidatorFunctionWrapHandler, WrapValidator

from oapl_core.objectives.clipped.bapo import Bapo
from oapl_core.objectives.clipped.cispo import Cispo
from oapl_core.objectives.clipped.gmpo import Gmpo
from oapl_core.objectives.clipped.grpo import Grpo, GrpoFrozen, GrpoTokenIs
from oapl_core.objectives.clipped.gspo import Gspo
from oapl_core.objectives.clipped.m2po import M2po
from oapl_core.objectives.clipped.minpro import Minpro
from oapl_core.objectives.clipped.rec import RecGspo, RecOneSide, RecRing, RecTwoSide
from oapl_core.objectives.group_variance import Agro, GroupSurrogate, Rebel
from oapl_core.objectives.inputs import Inputs, Loss, StepSizes
from oapl_core.objectives.kto import Kto
from oapl_core.objectives.max_at_k import MaxAtK
from oapl_core.objectives.method import Method, OwnObjective, is_own
from oapl_core.objectives.oapl import AStarPo, Dro, Oapl, Opmd
from oapl_core.objectives.pairs import Dpo, Ipo
from oapl_core.objectives.pairwise_weighted import PairwiseWeighted
from oapl_core.objectives.red import RedDrop, RedWeight
from oapl_core.objectives.reinforce import AsymRe, MaxRl, Reinforce
from oapl_core.objectives.supervised import Rft, Sft
from oapl_core.objectives.topr import Topr
from oapl_core.objectives.vespo import Vespo

Family = (
    Oapl
    | AStarPo
    | Dro
    | Opmd  # regressions on r - V
    | GroupSurrogate
    | Rebel
    | Agro  # regressions on differences within a group
    | Reinforce
    | AsymRe
    | PairwiseWeighted
    | RedDrop
    | RedWeight
    | MaxAtK
    | MaxRl
    | Topr
    | Vespo  # REINFORCE and its weights
    | Sft
    | Rft  # supervised
    | Dpo
    | Ipo
    | Kto  # preferences
    | Grpo
    | GrpoTokenIs
    | GrpoFrozen
    | RecOneSide
    | RecTwoSide
    | RecRing
    | RecGspo
    | Gspo
    | Gmpo
    | M2po
    | Bapo  # clipped
    | Cispo
    | Minpro  # truncated importance weights
)


def _chosen(value: Any, builtin: ValidatorFunctionWrapHandler) -> Any:
    if isinstance(value, dict) and is_own(value.get("name")):
        return OwnObjective.model_validate(value)
    # before the union is looked into: pydantic wants the discriminator that a file of OAPL's settings leaves out
    if isinstance(value, dict):
        value = {"name": "oapl", **value}
    return value if isinstance(value, OwnObjective) else builtin(value)


if TYPE_CHECKING:
    Objective = Family | OwnObjective
else:
    Objective = Annotated[SerializeAsAny[Family], Field(discriminator="name"), WrapValidator(_chosen)]
"""The `objective` group of an experiment's settings; without a `name` OAPL, with a foreign one an OwnObjective."""

__all__ = ["Inputs", "Loss", "Method", "Oapl", "Objective", "OwnObjective", "Sft", "StepSizes"]
