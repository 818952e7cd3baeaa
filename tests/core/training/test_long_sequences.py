"""A sequence of 32,768 tokens goes through a whole step of the loss within a stated memory bound."""

import subprocess
import sys

import pytest

TOKENS, VOCABULARY, BOUND_MB = 32_768, 32_000, 1536
PROGRAM = f"""
import resource
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from oapl_core.objectives import StepSizes, Inputs, Oapl
from oapl_core.training.model.logprobs import Policy

torch.manual_seed(0)
model = Qwen3ForCausalLM(Qwen3Config(
    vocab_size={VOCABULARY}, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
    num_key_value_heads=2, head_dim=32, max_position_embeddings={TOKENS}, tie_word_embeddings=True,
))
model.gradient_checkpointing_enable({{"use_reentrant": False}})
model.train()
policy = Policy(model)
ids = torch.randint(0, {VOCABULARY}, (1, {TOKENS}))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
logprob_ST = policy(ids, torch.tensor([768]), torch.tensor([{TOKENS}]))
ratio_ST, one = logprob_ST - logprob_ST.detach(), torch.tensor([0.5])
inputs = Inputs(ratio_ST, ratio_ST.detach() == 0, one, one, torch.tensor([0]), StepSizes(1, 1, {TOKENS}))
Oapl().loss(inputs).value.backward()
assert all(torch.isfinite(p.grad).all() and p.grad.any() for p in model.parameters())
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.slow
def test_forward_and_backward_of_the_longest_sequence_stay_within_the_bound() -> None:
    """The logits alone would be 4 GB, and the attention matrix of one head as much."""
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) < BOUND_MB, f"{float(result.stdout):.0f} MB"
