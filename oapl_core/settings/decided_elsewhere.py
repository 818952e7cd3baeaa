"""Keys of other libraries' tables, `engine.options` and `training.deepspeed`: those that settings of ours decide.

Found by the names of the settings (``plugins``, kind "setting"), where such a table is given.
"""

from collections.abc import Mapping
from typing import Any

from oapl_core.settings.engine_options import SAME_NAMES

_WEIGHTS = "the weights are those of `model` and of the run's checkpoints"
_POLICY = "rollouts are samples of the policy itself, at sampling.temperature and nothing else"
_MACHINES = 'use engine.replicas, or engine.distributed_executor_backend = "ray"'
_SECRET = "it would be written into run.json; set HF_TOKEN in the environment"
ENGINE_OPTIONS = {
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
    "logprobs_mode": "it follows from sampling.temperature: rollouts record log-probs of what they were sampled from",
    "seed": "each request has a seed of its own, derived from the experiment's",
    "kv_cache_memory_bytes": "use engine.kv_cache_gib on CPU, engine.gpu_memory_utilization on GPUs",
    **dict.fromkeys(("enable_return_routed_experts", "aux_output_config"), "use sampling.routes"),
    "hf_token": _SECRET,
}
"""vLLM's arguments that would change what a setting means without a word, and what to do instead."""

_DEEPSPEED = {
    "train_batch_size": "use training.batch_size",
    "train_micro_batch_size_per_gpu": "use training.tokens_per_micro_batch",
    "gradient_accumulation_steps": "use training.tokens_per_micro_batch; accumulation follows from it",
    "gradient_clipping": "use training.max_grad_norm",
    "optimizer": "use training.learning_rate, adam_betas, adam_eps and weight_decay",
    "scheduler": "use training.warmup_share and floor_share",
    "bf16": "use training.dtype",
    "fp16": "use training.dtype; float16 would scale the loss",
    "amp": "use training.dtype",
    "prescale_gradients": "gradients are averaged over ranks exactly as they are",
    "gradient_predivide_factor": "gradients are averaged over ranks exactly as they are",
    "sequence_parallel_size": "use training.sequence_parallel",
    "tensor_parallel": "tensor parallelism is not supported in training",
    "data_efficiency": "every sequence is trained on as it was sampled",
    "curriculum_learning": "every sequence is trained on as it was sampled",
    "progressive_layer_drop": "every layer is trained",
    "compression_training": "weights are trained as they are",
    "zero_optimization.stage": "use training.zero_stage",
    "zero_optimization.offload_optimizer": "use training.offload_optimizer",
    "zero_optimization.offload_param": "use training.offload_parameters",
}
"""Keys of DeepSpeed's configuration that would change what a setting means without a word, and what to do instead."""


def engine_options(options: Mapping[str, Any]) -> None:
    """Refuse arguments of vLLM's engine that are decided here.

    Raises:
        ValueError: one is; says what to do instead.
    """
    for name in sorted(options):
        why = ENGINE_OPTIONS.get(name, _MACHINES if name.startswith("data_parallel") else None)
        if why:
            raise ValueError(f"engine.options.{name} is decided here: {why}")


def deepspeed(config: Mapping[str, Any]) -> None:
    """Refuse keys of DeepSpeed's configuration that are decided here.

    Raises:
        ValueError: one is; says what to do instead.
    """
    zero = config.get("zero_optimization")
    given = set(config) | {f"zero_optimization.{key}" for key in zero or {} if isinstance(zero, dict)}
    refused = sorted(given & _DEEPSPEED.keys())
    if refused:
        raise ValueError(f"deepspeed.{refused[0]} is decided here: {_DEEPSPEED[refused[0]]}")


def naming_code(options: Mapping[str, Any]) -> list[str]:
    """List the options that have the engine run code which the option, or the model's folder, names."""
    return [name for name in options if options[name] and (name == "trust_remote_code" or name.endswith("_cls"))]
