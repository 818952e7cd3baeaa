"""Further arguments of vLLM's engine: the table `engine.options`, without those that are decided elsewhere."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

SAME_NAMES = (
    "dtype max_model_len max_num_seqs tensor_parallel_size pipeline_parallel_size distributed_executor_backend "
    "gpu_memory_utilization enforce_eager"
).split()
"""Settings of `[engine]` that vLLM has under the same name."""
_WEIGHTS = "the weights are those of `model` and of the run's checkpoints"
_POLICY = "rollouts are samples of the policy itself, at T=1 and nothing else"
_MACHINES = 'use engine.replicas, or engine.distributed_executor_backend = "ray"'
_SECRET = "it would be written into run.json; set HF_TOKEN in the environment"
_DECIDED = {
    **{name: f"use engine.{name}" for name in SAME_NAMES},
    "worker_extension_cls": "weights are replaced through it",
    "scheduler_cls": "log-probs are kept through it",
    **dict.fromkeys(
        ("model", "model_weights", "revision", "code_revision", "hf_config_path", "config_format", "download_dir"),
        _WEIGHTS,
    ),
    **dict.fromkeys(("model_class_overrides", "runner", "convert", "pooler_config"), _WEIGHTS),
    **dict.fromkeys(("tokenizer", "tokenizer_revision", "skip_tokenizer_init"), "the tokenizer is the model's own"),
    **dict.fromkeys(("generation_config", "override_generation_config", "logits_processors"), _POLICY),
    **dict.fromkeys(("watermark_config", "diffusion_config"), _POLICY),
    **dict.fromkeys(("master_addr", "master_port", "nnodes", "node_rank", "device_ids"), _MACHINES),
    "logprobs_mode": "rollouts record raw_logprobs: those of the model, before anything changes them",
    "seed": "each request has a seed of its own, derived from the experiment's",
    "kv_cache_memory_bytes": "use engine.kv_cache_gib on CPU, engine.gpu_memory_utilization on GPUs",
    **dict.fromkeys(("enable_return_routed_experts", "aux_output_config"), "use sampling.routes"),
    "hf_token": _SECRET,
}
"""vLLM's arguments that would change what a setting means without a word, and what to do instead."""


def _refuse_decided(options: dict[str, Any]) -> dict[str, Any]:
    for name in sorted(options):
        why = _DECIDED.get(name, _MACHINES if name.startswith("data_parallel") else None)
        if why:
            raise ValueError(f"engine.options.{name} is decided here: {why}")
    return options


EngineOptions = Annotated[dict[str, Any], AfterValidator(_refuse_decided)]
"""Keys of vLLM's EngineArgs; the engine refuses those that its version does not know."""


def naming_code(options: Mapping[str, Any]) -> list[str]:
    """List the options that have the engine run code which the option, or the model's folder, names."""
    return [name for name in options if options[name] and (name == "trust_remote_code" or name.endswith("_cls"))]
