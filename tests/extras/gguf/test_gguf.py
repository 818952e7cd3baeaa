"""A GGUF file, quantised here from a tiny model, comes back as a folder with the weights that its blocks stand for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from oapl_core.errors import ConfigError, DataError
from oapl_core.model_files.model_folder import load_tokenizer
from oapl_extras.gguf.gguf import convert
from tests.tiny_model import END, PAD, write_tiny_model

LAYERS = 2
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    **{
        f"model.layers.{n}.{theirs}": f"blk.{n}.{ours}"
        for n in range(LAYERS)
        for theirs, ours in {
            "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v",
            "self_attn.o_proj": "attn_output",
            "self_attn.q_norm": "attn_q_norm",
            "self_attn.k_norm": "attn_k_norm",
            "input_layernorm": "attn_norm",
            "post_attention_layernorm": "ffn_norm",
            "mlp.gate_proj": "ffn_gate",
            "mlp.up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
        }.items()
    },
}
"""GGUF's names of the tensors of a Qwen3 model."""


def load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def write_gguf(model_dir: Path, path: Path, begins: bool) -> None:
    """``model_dir`` with its matrices in Q8_0."""
    from gguf import GGMLQuantizationType, GGUFWriter, TokenType
    from gguf.quants import quantize

    model, tokenizer = load(model_dir), load_tokenizer(model_dir)
    config = model.config
    writer = GGUFWriter(path, "qwen3")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([TokenType.CONTROL if token in (END, PAD) else TokenType.NORMAL for token, _ in vocabulary])
    merges = tokenizer.backend_tokenizer.model.__getstate__()
    writer.add_token_merges([" ".join(pair) for pair in _merges(merges)])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_bos_token_id(tokenizer.pad_token_id)
    writer.add_add_bos_token(begins)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":  # tied
            continue
        values = tensor.numpy().astype(np.float32)
        target = f"{NAMES[name.removesuffix('.weight')]}.weight"
        if values.ndim == 2:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(target, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(target, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _merges(state: Any) -> list[list[str]]:
    import json

    merges: list[list[str]] = json.loads(state)["merges"]
    return merges


def write_model(folder: Path) -> Path:
    """A tiny Qwen3 with heads of 128 dimensions, as every published one has and transformers takes for granted."""
    from transformers import Qwen3ForCausalLM

    config = load(write_tiny_model(folder, hidden_size=64, layers=LAYERS)).config
    config.head_dim, config.initializer_range = 128, 0.2
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("begins", [False, True])
def test_a_converted_model_is_what_the_quantised_weights_stand_for(begins: bool, tmp_path: Path) -> None:
    original = write_model(tmp_path / "original")
    write_gguf(original, tmp_path / "model.gguf", begins)
    convert(tmp_path / "model.gguf", tmp_path / "folder", "float32")
    converted, source = load(tmp_path / "folder"), load(original).state_dict()
    for name, tensor in converted.state_dict().items():
        largest = float(source[name].abs().max())
        assert torch.allclose(tensor, source[name], atol=largest / 127), "8 bits of the largest value of a block"
    tokenizer, before = load_tokenizer(tmp_path / "folder"), load_tokenizer(original)
    text = "print the sum of x^2"
    assert tokenizer(text)["input_ids"] == [before.pad_token_id] * begins + before(text)["input_ids"]
    assert "quantization_config" not in converted.config.to_dict()


def test_weights_that_do_not_fit_the_config_are_refused(tmp_path: Path) -> None:
    original = write_tiny_model(tmp_path / "original", hidden_size=64, layers=LAYERS)
    write_gguf(original, tmp_path / "model.gguf", begins=False)
    with pytest.raises(DataError, match=r"model.gguf: .*\(12 weights do not fit .*, such as model.layers.0.self_attn"):
        convert(tmp_path / "model.gguf", tmp_path / "folder", "float32")
    assert not (tmp_path / "folder").exists()


def test_what_cannot_be_converted_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "rubbish.gguf").write_bytes(b"GGUF" + b"\x00" * 20)
    with pytest.raises(DataError, match=r"rubbish.gguf: transformers cannot convert it"):
        convert(tmp_path / "rubbish.gguf", tmp_path / "folder", "float32")
    with pytest.raises(DataError, match="there is no such file"):
        convert(tmp_path / "none.gguf", tmp_path / "folder", "float32")
    with pytest.raises(ConfigError, match="give the name of a new folder"):
        convert(tmp_path / "rubbish.gguf", tmp_path, "float32")
