"""Settings that decide which checkpoint samples which round: ``[sync]`` and ``[pipeline]``."""

from typing import Annotated

from pydantic import Field, PositiveInt

from oapl_core.settings_group import Settings


class SyncConfig(Settings):
    """Times at which the engine gets new weights (paper, Algorithm 1: every L optimiser steps). A round of L steps is
    one L; both settings count rounds. Together they set the policy lag. For rounds of L steps, `every_rounds` = I and
    `offset_rounds` = d, it runs from d L to (d + I) L - 1. That holds once the run has had d rounds.
    """

    every_rounds: PositiveInt = 1
    """The engine gets new weights before every so many rounds; those between are sampled with the same ones."""
    offset_rounds: Annotated[int, Field(ge=0)] | None = None
    """Rounds by which the sampling weights are older than the newest (the first rounds: the base model); unset: 0, with
    `[pipeline]` 1."""

    def starting_round(self, number: int, pipelined: bool) -> int:
        """Return the round whose first weights sample round ``number``; never a later one.

        Args:
            number: counted from 0.
            pipelined: whether a round is sampled while the one before it trains.
        """
        offset = int(pipelined) if self.offset_rounds is None else self.offset_rounds
        return max(0, number - number % self.every_rounds - offset)


class PipelineConfig(Settings):
    """Overlap of rounds: while a round trains, the next one is sampled by the checkpoint that the training started
    from. That checkpoint is one round older than without overlap (`sync.offset_rounds` is 1); OAPL allows the lag. The
    machine needs room for both at once.
    """

    engine_gpus: tuple[int, ...] = ()
    """GPUs of the sampling processes, as CUDA_VISIBLE_DEVICES counts them; none: all that are visible."""
    trainer_gpus: tuple[int, ...] = ()
    """GPUs of the trainer; none: all that are visible."""
