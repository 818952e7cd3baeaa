"""One rank of an engine: a step, its state saved, and read again: ``-m ... FOLDER ZERO_STAGE DTYPE [STATE]``.

Prints ``LISTENS address`` for every socket that this process or its launcher listens on, then ``SAVED`` and, where the
state of STATE (else its own) was read, ``LOADED steps``. What was read is saved in FOLDER/again, where that is there.
"""

import os
import sys
from pathlib import Path

import psutil
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from oapl_core.errors import OaplError
from oapl_core.settings.training import TrainingConfig
from oapl_core.training.engine import TrainingEngine
from oapl_core.training.model.logprobs import Policy


def model() -> Qwen3ForCausalLM:
    """A model of one layer, the same each time."""
    torch.manual_seed(0)
    shape = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "head_dim": 8}
    return Qwen3ForCausalLM(Qwen3Config(**shape, num_attention_heads=2, num_key_value_heads=2))


def main(folder: Path, zero_stage: str, dtype: str, state: str = "") -> None:
    """Of every rank."""
    policy = model()
    training = TrainingConfig.model_validate({"dtype": dtype, "zero_stage": int(zero_stage)})
    policy.to(getattr(torch, dtype))
    engine = TrainingEngine(Policy(policy), training)
    ids = torch.randint(0, 64, (1, 8))
    engine.backward(engine(ids, torch.tensor([1]), torch.tensor([8]), last=True).sum())
    engine.step(1e-3)
    for process in {os.getpid(), os.getppid()} if engine.ranks > 1 else {os.getpid()}:
        for one in psutil.Process(process).net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN:
                print(f"LISTENS {one.laddr.ip}\n", end="", flush=True)
    engine.wait()
    engine.save(folder)
    engine.wait()
    print("SAVED", flush=True)
    try:
        engine.load(Path(state) if state else folder)
        print(f"LOADED {engine.updates}", flush=True)
        if (folder / "again").is_dir():
            engine.save(folder / "again")
    except OaplError as error:
        print(f"error: {error}", flush=True)
    engine.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
