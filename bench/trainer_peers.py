"""Other trainers' optimiser steps for ``bench.trainer``, from packages and folders outside this repository.

hf8, hf1        transformers.Trainer (installed with the project), micro-batches of 8 and 1, right-padded to the longest
trl8            TRL's GRPO loss on given rollouts: a folder with the package `trl` (`--trl`, OAPL_BENCH_TRL); another
                objective, so only its compute path is compared
authors         the OAPL authors' actor, unmodified, with their old and reference passes: a checkout of their repository
                (`--authors`, OAPL_BENCH_AUTHORS) and a folder with tensordict, omegaconf, codetiming and hydra-core
                (`--site`, OAPL_BENCH_SITE)
authors_update  the same without the two further passes
"""

import os
import socket
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from bench.trainer import advantages
from tests.core.training.made_round import BETA1, BETA2

Step = Callable[[], float]


def make(name: str, model_dir: Path, rows: list[dict[str, Any]], peers: dict[str, Any], rate: float) -> Step:
    """The step of a contender; exits with a line if its folder is not given."""
    if name.startswith("hf"):
        return hugging_face(model_dir, rows, int(name[2:]), rate)
    if name == "trl8":
        _add(peers["trl"], "trl", "--trl DIR (a folder with the package trl)")
        return trl(model_dir, rows, 8, rate)
    _add(peers["site"], "tensordict", "--site DIR (a folder with tensordict, omegaconf, codetiming, hydra-core)")
    _add(peers["authors"], "verl", "--authors DIR (a checkout of their repository)")
    return authors(model_dir, rows, rate, further_passes=name == "authors")


def _add(folder: str | None, package: str, wanted: str) -> None:
    if not folder or not (Path(folder) / package).is_dir():
        sys.exit(f"needs {wanted}")
    sys.path.append(folder)


def _optimizer(model: torch.nn.Module, rate: float) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), eps=1e-5, weight_decay=0.01)


def _padded(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Right-padded rows, masks, behavior log-probs and where the response is, to the longest of ``rows``."""
    width = max(len(r["prompt_ids"]) + len(r["response_ids"]) for r in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    seen, behavior = torch.zeros_like(ids), torch.zeros(len(rows), width - 1)
    response = torch.zeros(len(rows), width - 1, dtype=torch.bool)
    for s, row in enumerate(rows):
        start, end = len(row["prompt_ids"]), len(row["prompt_ids"]) + len(row["response_ids"])
        ids[s, :end], seen[s, :end] = torch.tensor(row["prompt_ids"] + row["response_ids"]), 1
        behavior[s, start - 1 : end - 1], response[s, start - 1 : end - 1] = (
            torch.tensor(row["behavior_logprobs"]),
            True,
        )
    return {"input_ids": ids, "attention_mask": seen, "behavior": behavior, "response": response}


def scratch(model_dir: Path) -> str:
    """A new folder beside the model's, which goes when the comparison's folder goes."""
    return tempfile.mkdtemp(dir=model_dir.parent)


def hugging_face(model_dir: Path, rows: list[dict[str, Any]], micro_batch: int, rate: float) -> Step:
    """The loop that people write on transformers.Trainer: whole logits, a mask, padding to the longest of 8."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    advantage = advantages(rows, BETA1)
    data = [row | {"advantage": a} for row, a in zip(rows, advantage, strict=True)]

    def collate(chosen: list[dict[str, Any]]) -> dict[str, Tensor]:
        return _padded(chosen) | {"advantage": torch.tensor([row["advantage"] for row in chosen])}

    losses: list[float] = []

    class Oapl(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: dict[str, Tensor], *_: Any, **__: Any) -> Tensor:
            logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits[:, :-1]
            chosen = logits.float().log_softmax(-1).gather(-1, inputs["input_ids"][:, 1:, None])[..., 0]
            ratio = ((chosen - inputs["behavior"]) * inputs["response"]).sum(1)
            loss: Tensor = (BETA2 * ratio - inputs["advantage"]).square().mean()
            losses.append(float(loss.detach()))
            return loss

    class OneStep(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, _args: Any, _state: Any, control: Any, **_: Any) -> None:
            yielding.append(1)

    yielding: list[int] = []
    arguments = TrainingArguments(
        output_dir=scratch(model_dir),
        per_device_train_batch_size=micro_batch,
        max_steps=1,
        use_cpu=True,
        gradient_accumulation_steps=len(rows) // micro_batch,
        learning_rate=rate,
        lr_scheduler_type="constant",
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        adam_beta2=0.95,
        adam_epsilon=1e-5,
        weight_decay=0.01,
        dataloader_pin_memory=False,
    )
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    trainer = Oapl(model=model, args=arguments, train_dataset=data, data_collator=collate, callbacks=[OneStep()])

    def step() -> float:
        losses.clear()
        trainer.train()
        assert yielding
        return sum(losses) / len(losses)

    return step


def trl(model_dir: Path, rows: list[dict[str, Any]], micro_batch: int, rate: float) -> Step:
    """TRL's own loss function on micro-batches of given rollouts, padded to the batch's longest as its trainer does."""
    import datasets
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from tests.tiny_model import write_tiny_model

    tokenizer = AutoTokenizer.from_pretrained(write_tiny_model(Path(scratch(model_dir))))
    arguments = GRPOConfig(
        output_dir=scratch(model_dir),
        per_device_train_batch_size=micro_batch,
        num_generations=micro_batch,
        use_cpu=True,
        bf16=False,
        beta=0.0,
        report_to=[],
        gradient_accumulation_steps=len(rows) // micro_batch,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
    )
    trainer = GRPOTrainer(
        model=str(model_dir),
        args=arguments,
        processing_class=tokenizer,
        reward_funcs=lambda **_: [0.0],
        train_dataset=datasets.Dataset.from_list([{"prompt": "x"}] * len(rows)),
    )
    model, advantage = trainer.model, torch.tensor(advantages(rows, BETA1), dtype=torch.float32)
    model.train()
    trainer.current_gradient_accumulation_steps = len(rows) // micro_batch
    optimizer, sides = _optimizer(model, rate), _sides(rows)

    def step() -> float:
        total = 0.0
        for start in range(0, len(rows), micro_batch):
            part = {name: value[start : start + micro_batch] for name, value in sides.items()}
            names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
            inputs = {name: part[name] for name in names} | {
                "old_per_token_logps": part["behavior"],
                "advantages": advantage[start : start + micro_batch],
                "num_items_in_batch": sides["completion_mask"].sum(),
            }
            loss = trainer._compute_loss(model, inputs)
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


def _sides(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Left-padded prompts and right-padded answers, each to the longest of all rows: what verl and TRL compute on."""
    prompt, answer = (max(len(row[name]) for row in rows) for name in ("prompt_ids", "response_ids"))
    found = {
        "prompt_ids": torch.zeros(len(rows), prompt, dtype=torch.long),
        "prompt_mask": torch.zeros(len(rows), prompt, dtype=torch.long),
        "completion_ids": torch.zeros(len(rows), answer, dtype=torch.long),
        "completion_mask": torch.zeros(len(rows), answer, dtype=torch.long),
        "behavior": torch.zeros(len(rows), answer),
    }
    for s, row in enumerate(rows):
        p, n = len(row["prompt_ids"]), len(row["response_ids"])
        found["prompt_ids"][s, prompt - p :], found["prompt_mask"][s, prompt - p :] = torch.tensor(row["prompt_ids"]), 1
        found["completion_ids"][s, :n], found["completion_mask"][s, :n] = torch.tensor(row["response_ids"]), 1
        found["behavior"][s, :n] = torch.tensor(row["behavior_logprobs"])
    return found


def authors(model_dir: Path, rows: list[dict[str, Any]], rate: float, further_passes: bool) -> Step:
    """Their DataParallelOAPLActor, micro-batch 1 as in their script, on the longest answer (not on their 32,000).

    What a CPU wants: one gloo rank, no compilation, no removal of padding (which needs FlashAttention), no gradient
    checkpointing (theirs is on; it would cost them a further forward pass).
    """
    _one_rank()
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.workers.actor.dp_actor_oapl import DataParallelOAPLActor

    config = OmegaConf.create(
        {
            "use_remove_padding": False,
            "use_fused_kernels": False,
            "use_torch_compile": False,
            "dtype": "float32",
            "ulysses_sequence_parallel_size": 1,
            "entropy_from_logits_with_chunking": False,
            "grad_clip": 1.0,
            "ppo_mini_batch_size": len(rows),
            "ppo_micro_batch_size_per_gpu": 1,
            "ppo_epochs": 1,
            "use_dynamic_bsz": False,
            "entropy_coeff": 0,
            "use_kl_loss": False,
            "beta2": BETA2,
            "entropy_checkpointing": False,
        }
    )
    model, reference = (AutoModelForCausalLM.from_pretrained(model_dir) for _ in range(2))
    actor = DataParallelOAPLActor(config, model, _optimizer(model, rate))
    fixed = DataParallelOAPLActor(config, reference)
    sides = _sides(rows)
    seen = torch.cat([sides["prompt_mask"], sides["completion_mask"]], 1)
    reward_ST = torch.zeros_like(sides["behavior"])
    for s, row in enumerate(rows):
        reward_ST[s, len(row["response_ids"]) - 1] = row["reward"]
    rewards = torch.tensor([row["reward"] for row in rows])
    data = DataProto.from_dict(
        {
            "responses": sides["completion_ids"],
            "input_ids": torch.cat([sides["prompt_ids"], sides["completion_ids"]], 1),
            "attention_mask": seen,
            "position_ids": (seen.cumsum(1) - 1).clamp(min=0),
            "old_log_probs": sides["behavior"],
            "ref_log_prob": sides["behavior"],
            "token_level_rewards": reward_ST,
            "values": rewards - torch.tensor(advantages(rows, BETA1), dtype=torch.float32),
        }
    )
    data.meta_info |= {"temperature": 1.0, "micro_batch_size": 1, "use_dynamic_bsz": False}

    def step() -> float:
        if further_passes:  # their trainer scores with the policy and with the reference before each update
            actor.compute_log_prob(data)
            fixed.compute_log_prob(data)
        losses: list[float] = actor.update_policy(data)["actor/pg_loss"]
        return sum(losses) / len(losses)

    return step


def _one_rank() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = str(server.getsockname()[1])
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.distributed.init_process_group("gloo")
    if not hasattr(torch.cpu, "memory_allocated"):  # what their memory logger asks a device for
        shim = SimpleNamespace(memory_allocated=lambda: 0, memory_reserved=lambda: 0, mem_get_info=lambda: (0, 0))
        for name, value in vars(shim).items():
            setattr(torch.cpu, name, value)
