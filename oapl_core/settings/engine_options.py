"""Further arguments of vLLM's engine: the table `engine.options`, without those that are decided elsewhere."""

from typing import Annotated, Any

from pydantic import AfterValidator

from oapl_core.plugins import resolve

SAME_NAMES = (
    "dtype max_model_len max_num_seqs tensor_parallel_size pipeline_parallel_size distributed_executor_backend "
    "gpu_memory_utilization enforce_eager"
).split()
"""Settings of `[engine]` that vLLM has under the same name."""


def _refuse_decided(options: dict[str, Any]) -> dict[str, Any]:
    # most experiments give none, and need no list of what is refused
    if options:
        resolve("setting", "engine.options")(options)
    return options


EngineOptions = Annotated[dict[str, Any], AfterValidator(_refuse_decided)]
"""Keys of vLLM's EngineArgs; the engine refuses those that its version does not know."""
