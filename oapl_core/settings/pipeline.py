"""Sampling and training at the same time: the settings of ``[pipeline]``."""

from oapl_core.settings_group import Settings


class PipelineConfig(Settings):
    """Overlap of rounds: while a round trains, the next one is sampled by the checkpoint that the training started
    from. That checkpoint is one round older than without overlap (`sync.offset_rounds` is 1); OAPL allows the lag. The
    machine needs room for both at once.
    """

    engine_gpus: tuple[int, ...] = ()
    """GPUs of the sampling processes, as CUDA_VISIBLE_DEVICES counts them; none: all that are visible."""
    trainer_gpus: tuple[int, ...] = ()
    """GPUs of the trainer; none: all that are visible."""
