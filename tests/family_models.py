"""A tiny random model of each family of transformers, with the parts that make the family what it is.

Sizes are such that vLLM's CPU build takes them (heads of 32) and weights such that a mistake shows: distributions are
peaked, attention is uneven, no bias is 0 and no norm's weight 1, sequences are longer than sliding windows and than
what a scaled rotary embedding was made for. Writes folders that AutoModelForCausalLM and vLLM load.
"""

from pathlib import Path
from typing import Any

from tests.tiny_model import CHAT_TEMPLATE, END, PAD, TEXTS

WINDOW = 32
"""Sliding windows. Tokens."""
_SIZES = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
}
_SLIDING = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 64,
}
_LATENT = {  # multi-head latent attention; vLLM's CPU build wants the sizes of the real one
    "q_lora_rank": 64,
    "kv_lora_rank": 512,
    "head_dim": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
    "num_key_value_heads": 4,
}

# name: configuration class, tokenizer (tiktoken- or sentencepiece-like BPE), settings
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qwen2": ("Qwen2Config", "bytes", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", "bytes", {"tie_word_embeddings": True}),
    "qwen3-moe": (
        "Qwen3MoeConfig",
        "bytes",
        {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True},
    ),
    "qwen3-next": (
        "Qwen3NextConfig",
        "bytes",
        {
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 64,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_key_head_dim": 128,  # vLLM's CPU kernel knows no smaller ones
            "linear_value_head_dim": 128,
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 2,
        },
    ),
    "llama": ("LlamaConfig", "bytes", {"rope_parameters": _LLAMA3}),
    "mistral": ("MistralConfig", "pieces", {"sliding_window": WINDOW}),
    "mixtral": ("MixtralConfig", "pieces", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "gemma2": (
        "Gemma2Config",
        "pieces",
        {**_SLIDING, "query_pre_attn_scalar": 32, "final_logit_softcapping": 4.0, "attn_logit_softcapping": 2.0},
    ),
    "gemma3": ("Gemma3TextConfig", "pieces", {**_SLIDING, "query_pre_attn_scalar": 32, "initializer_range": 0.05}),
    "phi3": ("Phi3Config", "pieces", {"sliding_window": None}),
    "glm4": ("Glm4Config", "bytes", {"partial_rotary_factor": 0.5, "attention_bias": True}),
    "olmo2": ("Olmo2Config", "bytes", {}),
    "olmo3": ("Olmo3Config", "bytes", _SLIDING),
    "smollm3": ("SmolLM3Config", "bytes", {"no_rope_layers": [1, 0], "tie_word_embeddings": True}),
    "granite": (
        "GraniteConfig",
        "bytes",
        {
            "logits_scaling": 4.0,
            "embedding_multiplier": 12.0,
            "attention_multiplier": 0.125,
            "residual_multiplier": 0.22,
            "tie_word_embeddings": True,
        },
    ),
    "cohere2": ("Cohere2Config", "bytes", {**_SLIDING, "logit_scale": 0.25}),
    "gpt-oss": (
        "GptOssConfig",
        "bytes",
        {**_SLIDING, "num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": _YARN | {"truncate": False}},
    ),
    "deepseek-v3": (
        "DeepseekV3Config",
        "bytes",
        {
            **_LATENT,
            "rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "topk_method": "noaux_tc",  # in the config.json of the real one; transformers knows no other
            "scoring_func": "sigmoid",
            "n_group": 2,
            "topk_group": 1,
            "moe_intermediate_size": 64,
            "first_k_dense_replace": 1,
        },
    ),
}


def write_family(folder: Path, family: str, dtype: str = "float32", seed: int = 0) -> Path:
    """Write a random model of ``family`` with weights of ``dtype`` to ``folder`` and return it."""
    import torch
    import transformers

    name, kind, settings = FAMILIES[family]
    tokenizer = _tokenizer(kind)
    special = {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
    }
    config = getattr(transformers, name)(**(_SIZES | special | settings))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for weight in [*model.parameters(), *_routing_biases(model)]:
                if weight.dim() == 1:  # biases are drawn as 0, norms as 1: a program that forgets one would not be seen
                    weight.add_(0.2 * torch.randn_like(weight))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _routing_biases(model: Any) -> list[Any]:
    return [buffer for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias")]


def _tokenizer(kind: str) -> Any:
    """A tokenizer of 320 tokens: BPE over bytes, as tiktoken's, or over characters with bytes to fall back on, as
    sentencepiece's."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = [PAD, "<|im_start|>", END]
    if kind == "bytes":
        core = Tokenizer(models.BPE())
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        special += [f"<0x{byte:02X}>" for byte in range(256)]
        core = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True))
        core.normalizer = normalizers.Replace(" ", "▁")
        core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        alphabet = []
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=special, show_progress=False, initial_alphabet=alphabet
    )
    core.train_from_iterator(TEXTS, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
