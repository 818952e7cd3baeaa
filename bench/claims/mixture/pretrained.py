"""A base model of the mixture, made in parts: ``python -m bench.claims.mixture.pretrained SCALE --to DIR --minutes 8``.

Trains what the pipeline's stage `pretrain` would, with its own tokenizer, batches, loss and optimisers, and saves all
that a later call needs as DIR/cache/models/.state-KEY. A finished model lies in the cache under the stage's own name,
where run folders find it. In float32 on a CPU it has the bits of the stage's (tests/bench/test_mixture_pretraining.py).

    --minutes M     ends after so long; call again to continue
    --cool STEPS    from the saved state, which stays: so many more steps with the rate falling to 0, as DIR/cooled/KEY
    --bfloat16      matrix products in 16 bits, for a GPU

`checkpoints` trains at a constant rate and leaves a cooled model at each of some times: on a GPU a base is chosen among
them, by its gates, in one call.

Each call appends to progress.jsonl beside the state: steps, answer tokens, loss (nats per token), seconds.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.claims.mixture import bed
from bench.claims.mixture.encoded import EXAMPLES, Encoded, OnDevice
from bench.claims.mixture.scales import SCALES

if TYPE_CHECKING:
    import torch

    from oapl_core.pretraining.model import Example
    from oapl_core.pretraining.pretrain import Solved
    from oapl_core.run_folder.run import Run
    from oapl_core.settings.pretrain import PretrainConfig

WARMUP = 100
"""Steps in which the rate of `checkpoints` rises."""
REPORT_S = 60.0
"""Seconds between lines of progress."""


@dataclass
class Pretraining:
    """A model in training, and what it is trained on."""

    model: Any
    tokenizer: Any
    encoded: Encoded
    batches: Sequence[Sequence[int]]
    optimizers: Sequence[torch.optim.Optimizer]
    peak: float
    """Learning rate."""
    step: int = 0
    seconds: float = 0.0
    """Of all calls so far."""
    bfloat16: bool = False
    examples: Sequence[Example] = ()
    """For a CPU, with the stage's own loss."""
    on_device: OnDevice | None = None
    """For a GPU."""
    is_by_answer: bool = False
    """There every answer counts alike, however long it is."""

    def make_step(self, share: float) -> torch.Tensor:
        """One optimiser step at a share of the peak rate; returns the loss, a scalar."""
        import torch

        from oapl_core.pretraining.model import batch_loss

        device, batch = next(self.model.parameters()).device, self.batches[self.step % len(self.batches)]
        with torch.autocast(device.type, torch.bfloat16, enabled=self.bfloat16):
            if self.on_device:
                loss = self.on_device.backward(self.model, batch, self.is_by_answer)
            else:
                with device:
                    loss = batch_loss(self.model, [self.examples[i] for i in batch])
                    loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.peak * share
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.detach()

    def share(self, step: int) -> float:
        """Share of the peak rate, as the stage has it."""
        from oapl_core.pretraining.model import learning_rate_share

        return learning_rate_share(step, len(self.batches))

    def tokens(self, step: int) -> int:
        """Answer tokens of a step."""
        own = list(self.batches[step % len(self.batches)])
        return int((self.encoded.lengths[own] - self.encoded.prompts[own]).sum())

    def state(self) -> dict[str, Any]:
        """What a later call continues from."""
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        return {"step": self.step, "seconds": self.seconds, "model": self.model.state_dict(), "optimizers": states}

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self.step, self.seconds = state["step"], state["seconds"]
        self.model.load_state_dict(state["model"])
        for optimizer, own in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(own)

    def export(self, folder: Path) -> None:
        """Write the model as a folder, complete or not at all; made in 16 bits, its weights have no more."""
        import torch

        if self.bfloat16:
            with torch.no_grad():
                for weight in self.model.parameters():
                    weight.copy_(weight.to(torch.bfloat16))
        draft = folder.with_name(f".tmp-{os.getpid()}-{folder.name}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(draft)
        self.tokenizer.save_pretrained(draft)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)


def main() -> None:
    """Train for some minutes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scale", choices=list(SCALES))
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--save-minutes", type=float, default=5.0)
    parser.add_argument("--cool", type=int, default=0)
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--set", nargs="*", default=[], help="settings in place of the file's, KEY=VALUE")
    options = parser.parse_args()
    from oapl_core.run_folder.opening import opened

    to = options.to.resolve()
    # the run's folder is free while its model is in training
    with opened(bed.found(options.scale, to, options.seed, options.set), print) as run:
        job = job_of(run)
    if options.cool:
        cool(job, to / "cooled", options.cool, options.bfloat16)
    else:
        make(job, options.minutes, options.save_minutes, options.bfloat16)


@dataclass(frozen=True)
class Job:
    """What a model is made of, and its place."""

    config: PretrainConfig
    seed: int
    solutions: Path
    folder: Path
    """Where the stage looks for it."""

    @property
    def kept(self) -> Path:
        """The folder of the state."""
        return self.folder.with_name(f".state-{self.folder.name}")


def job_of(run: Run) -> Job:
    """The model of a run."""
    from oapl_core.pretraining.pretrain import RECIPE, content_key

    config = run.config.pretrain
    assert config
    settings = {**config.model_dump(mode="json"), "seed": run.config.seed, "recipe": RECIPE}
    key = content_key(settings, run.inputs([config.solutions]))
    return Job(config, run.config.seed, run.place(config.solutions), run.config.cache_dir / "models" / key)


def make(job: Job, minutes: float, save_minutes: float = 5.0, bfloat16: bool = False) -> bool:
    """Train from where the last call ended; returns whether the model is finished."""
    folder, kept = job.folder, job.kept
    if folder.is_dir():
        print(f"{folder} is finished")
        return True
    began = time.monotonic()
    own = begun(job, bfloat16)
    earlier, saved, told = own.seconds, time.monotonic(), time.monotonic()
    tokens = losses = steps = 0.0
    while own.step < len(own.batches):
        tokens += own.tokens(own.step)
        losses += float(own.make_step(own.share(own.step)))
        steps += 1
        now = time.monotonic()
        own.seconds = earlier + now - began
        if now - told > REPORT_S or own.step == len(own.batches):
            _tell(kept, own, int(tokens), losses / steps)
            told, tokens, losses, steps = now, 0.0, 0.0, 0.0
        if now - saved > 60 * save_minutes:
            _save(kept, own)
            saved = time.monotonic()
        if now - began >= 60 * minutes:
            break
    _save(kept, own)
    if own.step < len(own.batches):
        return False
    own.model.eval()
    own.export(folder)
    for name in (EXAMPLES, "state.pt"):
        (kept / name).unlink()
    return True


def cool(job: Job, to: Path, steps: int, bfloat16: bool = False) -> Path:
    """A model from the saved state after more steps with a falling rate, as if pretraining ended with them."""
    own = begun(job, bfloat16)
    first, share = own.step, own.share(own.step)
    for number in range(steps):
        loss = own.make_step(share * (steps - number) / steps)
        if number % 50 == 0 or number + 1 == steps:
            print(f"cooling: step {number + 1}/{steps} | loss {float(loss):.3f}", flush=True)
    own.model.eval()
    folder = to / f"{job.folder.name}-{first}+{steps}"
    own.export(folder)
    print(folder)
    return folder


def checkpoints(
    own: Pretraining, to: Path, at: Sequence[float], is_enough: Callable[[], bool], cooling: float = 0.1
) -> Iterator[Path]:
    """Train at a constant rate; after each of some seconds leave a model whose rate fell to 0, as TO/STEPS.

    A model is cooled for a share of the steps before it, and training continues from where cooling began. Ends
    early, with fewer models, where ``is_enough`` says so.
    """
    began, paused = time.monotonic(), 0.0
    for seconds in at:
        losses: list[Any] = []
        while time.monotonic() - began - paused < seconds:
            losses.append(own.make_step(min(1.0, (own.step + 1) / WARMUP)))
            if own.step % 20 == 0:
                float(losses[-1])  # waits: a GPU's queue of steps would hide the time that they take
                if is_enough():
                    return
        stopped, kept = time.monotonic(), copy.deepcopy(own.state())
        mean = sum(map(float, losses[-100:])) / max(1, len(losses[-100:]))
        facts: dict[str, Any] = {"constant_rate_steps": own.step, "loss": round(mean, 4)}
        steps = max(2, round(cooling * own.step))
        cooled = [own.make_step((steps - number) / steps) for number in range(steps)]
        facts |= {"seconds": round(stopped - began - paused), "cooled_loss": round(float(cooled[-1]), 4)}
        facts["cooling_seconds"] = round(time.monotonic() - stopped)
        print(f"step {own.step} | {json.dumps(facts)}", flush=True)
        folder = to / f"{own.step:06d}"
        own.export(folder)
        folder.with_suffix(".json").write_text(json.dumps(facts) + "\n")
        own.load(kept)
        paused += time.monotonic() - stopped
        yield folder


def begun(job: Job, bfloat16: bool) -> Pretraining:
    """The model as the last call left it, or at its beginning."""
    import torch
    from transformers import PreTrainedTokenizerFast

    from oapl_core.pretraining.model import new_model
    from oapl_core.seeds import derive_seed

    config, kept = job.config, job.kept
    torch.set_num_threads(config.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if bfloat16 and device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
    if not (kept / EXAMPLES).exists():
        write_encoded(job.solutions, config.vocabulary, kept)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(kept / "tokenizer")
    known = Encoded.read(kept / EXAMPLES)
    assert known.lengths.max() <= config.max_positions, "a solution is longer than the model reads"
    with device:
        model = new_model(config, tokenizer, derive_seed(job.seed, "pretrain", "weights"))
    print(f"{model.num_parameters():,} parameters, {len(known.lengths)} solutions on {device}", flush=True)
    batches = by_length(known, config, derive_seed(job.seed, "pretrain", "order"))
    own = started(model, tokenizer, known, batches, config)
    own.bfloat16 = bfloat16
    if (kept / "state.pt").exists():
        own.load(torch.load(kept / "state.pt", map_location=device, weights_only=True))
        print(f"continues at step {own.step} of {len(own.batches)}", flush=True)
    model.train()
    return own


def write_encoded(solutions: Path, vocabulary: int, folder: Path) -> None:
    """Write FOLDER/tokenizer, and the ids of all solutions as FOLDER/examples.npz."""
    from oapl_core.pretraining.pretrain import corpus, read_solved
    from oapl_core.pretraining.tokenizer import train_tokenizer

    solved = read_solved(solutions)
    tokenizer = train_tokenizer(corpus(solved), vocabulary)
    tokenizer.save_pretrained(folder / "tokenizer")
    Encoded.of(encoded(solved, tokenizer)).write(folder / EXAMPLES)


def encoded(solved: Sequence[Solved], tokenizer: Any) -> list[tuple[list[int], list[int]]]:
    """Ids of each prompt and answer, as the stage's `encode` makes them, but many at once.

    Raises:
        AssertionError: they are others than the stage's.
    """
    from oapl_core.pretraining.pretrain import encode

    marked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "{}"}], add_generation_prompt=True, tokenize=False
    )
    before, after = marked.split("{}")
    texts = [before + one.statement + after for one in solved for _ in one.solutions]
    prompts = tokenizer(texts)["input_ids"]
    answers = tokenizer([text for one in solved for text in one.solutions])["input_ids"]
    made = [(prompt, [*answer, tokenizer.eos_token_id]) for prompt, answer in zip(prompts, answers, strict=True)]
    known = [(one.prompt_ids, one.answer_ids) for one in encode(solved[:64], tokenizer)]
    assert made[: len(known)] == known
    return made


def by_length(known: Encoded, config: PretrainConfig, seed: int) -> list[list[int]]:
    """Batches of all epochs, each of nearly equal lengths, as `oapl_core.pretraining.model.train_model` has them."""
    from oapl_core.pretraining.model import plan_batches

    rng, lengths = random.Random(seed), known.lengths.tolist()
    return [batch for _ in range(config.epochs) for batch in plan_batches(lengths, config.batch_size, rng)]


def mixed(known: Encoded, config: PretrainConfig, seed: int, most: int) -> list[list[int]]:
    """Batches of all epochs, each of all lengths up to ``most`` tokens.

    Batches of one length are of one family, and their steps pull apart.
    """
    rng, size, found = random.Random(seed), config.batch_size, []
    order = [row for row, length in enumerate(known.lengths.tolist()) if length <= most]
    for _ in range(config.epochs):
        rng.shuffle(order)
        found += [order[first : first + size] for first in range(0, len(order), size)]
    return found


def started(
    model: Any, tokenizer: Any, known: Encoded, batches: list[list[int]], config: PretrainConfig
) -> Pretraining:
    """Optimisers as `oapl_core.pretraining.model.train_model` has them, on a GPU to rounding."""
    import torch

    from bench.claims.mixture.muon import StackedMuon

    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    ways: Any = {"lr": config.learning_rate, "weight_decay": 0.1}
    is_on_gpu = model.device.type == "cuda"
    optimizers: list[torch.optim.Optimizer] = [
        StackedMuon(matrices, **ways)
        if is_on_gpu
        else torch.optim.Muon(matrices, **ways, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    own = Pretraining(model, tokenizer, known, batches, optimizers, config.learning_rate)
    if is_on_gpu:
        own.on_device = OnDevice(known, model.device)
    else:
        own.examples = known.examples()
    return own


def _save(kept: Path, own: Pretraining) -> None:
    import torch

    draft = kept / ".tmp-state.pt"
    torch.save(own.state(), draft)
    draft.rename(kept / "state.pt")


def _tell(kept: Path, own: Pretraining, tokens: int, loss: float) -> None:
    row = {"step": own.step, "steps": len(own.batches), "tokens": tokens, "loss": round(loss, 4)}
    line = json.dumps({**row, "seconds": round(own.seconds, 1)})
    print(line, flush=True)
    with (kept / "progress.jsonl").open("a") as file:
        file.write(line + "\n")


if __name__ == "__main__":
    main()
