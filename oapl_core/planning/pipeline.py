"""GPUs of sampling and training where both run at once: the setting `pipeline`, by whose name stages find this."""

import os
from pathlib import Path

from oapl_core.errors import ConfigError
from oapl_core.planning.stages import BY_VERB, SAMPLING, TRAINING
from oapl_core.run_folder.run import Run

_DEVICES = Path("/dev")


def choose_gpus(run: Run, verb: str) -> None:
    """Choose the GPUs of engine and trainer with `pipeline`, before torch is imported, which looks once.

    Raises:
        ConfigError: both would work on one GPU at a time.
    """
    pipeline, known = run.config.pipeline, BY_VERB.get(verb)
    if not (pipeline and known and known.gpus):
        return
    lists = (set(pipeline.engine_gpus), set(pipeline.trainer_gpus))
    # other machines may have other GPUs
    is_here = not any(map(run.config.is_elsewhere, (SAMPLING.verb, TRAINING.verb)))
    if is_here and any(_DEVICES.glob("nvidia[0-9]*")) and (not all(lists) or lists[0] & lists[1]):
        raise ConfigError(
            f"{run.root}: with [pipeline] sampling and training would share GPUs and run out of memory: give each "
            "its own, pipeline.engine_gpus=[0,1] and pipeline.trainer_gpus=[2,3], or a machine ([fleet])"
        )
    if gpus := getattr(pipeline, known.gpus):
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
