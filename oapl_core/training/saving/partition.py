"""A rank's part of the optimiser: where DeepSpeed keeps float32 weights and moments of each weight, by ZeRO stage.

    0      whole on every rank, by weight
    1, 2   one flat float32 vector of all weights, cut into as many parts as ranks
    3      each weight cut into as many parts as ranks; flat vectors of these parts

Reads DeepSpeed's own records of it. Writes nothing but the optimiser's memory.
"""

from collections.abc import Iterator
from typing import Any

import torch

from oapl_core.training.saving.pieces import WEIGHT, WeightPiece

_MOMENTS = ("exp_avg", "exp_avg_sq")
"""AdamW's names of its moments."""


class Partition:
    """Part of the optimiser that this rank steps, as DeepSpeed's engine holds it."""

    def __init__(self, engine: Any, zero_stage: int) -> None:
        """Look into ``engine``, DeepSpeed's, whose optimiser is AdamW."""
        self._engine, self._stage = engine, zero_stage
        self._zero = engine.optimizer
        self._adam: Any = self._zero.optimizer if zero_stage else self._zero

    @property
    def sizes(self) -> dict[str, int]:
        """Numbers of each trained weight, whole."""
        return {name: getattr(weight, "ds_numel", weight.numel()) for name, weight in self._trained()}

    def pieces(self) -> list[WeightPiece]:
        """List what this rank steps; with ZeRO 0, where every rank steps all, that is each weight whole."""
        return [piece for name, weight in self._trained() if (piece := self._piece(name, weight))]

    def own_pieces(self, rank: int, ranks: int) -> list[WeightPiece]:
        """List what ``rank`` of ``ranks`` writes, so that each number is written once."""
        pieces = self.pieces()
        shared = pieces if self._stage else [piece.share(rank, ranks) for piece in pieces]
        return [piece for piece in shared if piece.end > piece.start]

    def take(self, updates: int) -> None:
        """Compute with the float32 weights that the pieces were filled with, after so many steps of the optimiser."""
        for vector in self._vectors():
            state = self._state(vector)
            if torch.is_tensor(state["step"]):
                state["step"].fill_(updates)
            else:
                state["step"] = updates
        self._engine.global_steps = updates
        self.renew()

    def renew(self) -> None:
        """Compute with the float32 weights as they are now."""
        if self._stage in (1, 2):
            # weights that are computed with are the float32 ones rounded, as after each step
            self._zero.update_lp_params()
        elif self._stage == 3:
            # small weights, and second copies on each machine, are whole between steps: they are gathered anew
            self._zero.checkpoint_event_prologue()
            for number in range(len(self._zero.fp32_partitioned_groups_flat)):
                self._zero._reassign_or_swap_out_partitioned_parameters(number)
            self._zero.checkpoint_event_epilogue()

    @property
    def updates(self) -> int:
        """Steps that the optimiser has made."""
        updates = int(self._engine.global_steps)
        # a weight that got no gradient in a step still gets one of zeros: all have made as many
        assert {int(self._state(vector)["step"]) for vector in self._vectors()} <= {updates}
        return updates

    def _trained(self) -> Iterator[tuple[str, Any]]:
        return ((name, weight) for name, weight in self._engine.module.named_parameters() if weight.requires_grad)

    def _vectors(self) -> list[torch.Tensor]:
        """List the float32 tensors that AdamW steps."""
        if self._stage == 3:  # it gives them to AdamW one at a time, within a step
            return list(self._zero.fp32_partitioned_groups_flat)
        return [vector for group in self._adam.param_groups for vector in group["params"]]

    def _state(self, vector: torch.Tensor) -> dict[str, Any]:
        """Return what AdamW keeps beside ``vector``: as its first step would make it, where none was made yet."""
        state: dict[str, Any] = self._adam.state[vector]
        if not state:
            is_torchs = "fused" in self._adam.defaults
            place = vector.device if self._adam.defaults.get("fused") else torch.device("cpu")
            state["step"] = torch.zeros((), device=place) if is_torchs else 0
            state |= {kind: torch.zeros_like(vector) for kind in _MOMENTS}
        return state

    def _piece(self, name: str, weight: Any) -> WeightPiece | None:
        """Return the piece of a weight that is this rank's; None if none of its numbers is."""
        if self._stage == 0:
            return self._cut(name, 0, weight, 0, weight.numel())
        if self._stage == 3:
            group, offset, _ = self._zero.grad_position[self._zero.get_param_id(weight)]
            part = weight.ds_tensor.ds_numel  # of each rank; the last one's may end in padding
            start = part * self._zero._get_param_partition_rank(weight)
            size, vector = min(part, weight.ds_numel - start), self._zero.fp32_partitioned_groups_flat[group]
            return self._cut(name, start, vector, offset, size) if size > 0 else None
        found = weight._hp_mapping
        if found is None:
            return None
        vector, place = self._adam.param_groups[found.param_group_index]["params"][0], found.hp_fragment_address
        return self._cut(name, found.lp_fragment_address.start, vector, place.start, place.numel)

    def _cut(self, name: str, start: int, vector: torch.Tensor, offset: int, size: int) -> WeightPiece:
        state = self._state(vector)
        kept = {WEIGHT: vector, **{kind: state[kind] for kind in _MOMENTS}}
        return WeightPiece(name, start, {kind: x.data.view(-1).narrow(0, offset, size) for kind, x in kept.items()})
