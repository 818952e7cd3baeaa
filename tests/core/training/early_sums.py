"""Steps with gradients that join the sum at once, and with those that wait for the end of a backward pass.

``python -m tests.core.training.early_sums CHOICE`` prints JSON, a line for each way: ``norms`` and ``weights`` (sha256)
after two steps of three micro-batches, and after a backward pass the bytes of the ``sums`` and of gradients that are
``kept`` beside them. CHOICE is a place among the choices of what is computed again.
"""

import hashlib
import json
import sys
from unittest import mock

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from oapl_core.planning.recomputation import CHOICES, Recomputation
from oapl_core.settings.training import TrainingConfig
from oapl_core.training import engine as engine_module
from oapl_core.training.engine import TrainingEngine
from oapl_core.training.model.logprobs import Policy
from oapl_core.training.model.recomputation import recompute


def main(choice: Recomputation) -> None:
    """With tied weights, whose gradient has two parts, and without; ``choice`` is of what is computed again."""
    made = engine_module.settings
    for tied in (False, True):
        for at_once in (True, False):
            # no `wraps`: the settings of today are changed in what is compared
            def settings(training: TrainingConfig, ranks: int, at_once: bool = at_once) -> dict[str, object]:
                found = made(training, ranks)
                assert found["bf16"]["immediate_grad_update"]
                return found | {"bf16": {**found["bf16"], "immediate_grad_update": at_once}}

            with mock.patch.object(engine_module, "settings", settings):
                print(json.dumps({"tied": tied, "recompute": choice, "at_once": at_once, **steps(tied, choice)}))


def steps(tied: bool, choice: Recomputation) -> dict[str, object]:
    """Two of them, by DeepSpeed."""
    torch.manual_seed(0)
    shape = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
    config = Qwen3Config(**shape, num_attention_heads=2, num_key_value_heads=2, tie_word_embeddings=tied)
    model = Qwen3ForCausalLM(config).bfloat16()
    training = TrainingConfig.model_validate({"dtype": "bfloat16", "zero_stage": 1, "recompute": choice})
    recompute(model, choice)
    policy = Policy(model)
    engine = TrainingEngine(policy, training)
    norms: list[float] = []
    kept = sums = 0
    for _ in range(2):
        for number in range(3):
            ids = torch.randint(0, 64, (2, 24))
            prompts, lengths = torch.tensor([4, 6]), torch.tensor([24, 20])
            engine.backward(engine(ids, prompts, lengths, last=number == 2).sum())
        kept = sum(p.grad.nbytes for p in policy.parameters() if p.grad is not None)
        sums = sum(one.nbytes for one in engine._engine.optimizer.fp32_groups_gradients_flat)
        norms.append(engine.step(1e-3))
    weights = engine.weights()
    raw = b"".join(weights[name].contiguous().view(torch.uint8).numpy().tobytes() for name in sorted(weights))
    trained = sum(p.numel() for p in policy.parameters())
    return {
        "norms": norms,
        "weights": hashlib.sha256(raw).hexdigest(),
        "kept": kept,
        "sums": sums,
        "trained": trained,
    }


if __name__ == "__main__":
    main(CHOICES[int(sys.argv[1])])
