"""Everything that differs between the methods, and only that: one file per objective (docs/objectives.md)."""

from oapl_core.objectives.registry import Objective, make_objective

__all__ = ["Objective", "make_objective"]
