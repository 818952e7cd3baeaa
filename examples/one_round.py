"""OAPL (arXiv 2602.19362) from top to bottom: sample, judge, group, loss, step. `python examples/one_round.py [MODEL]`

MODEL is a Hugging Face folder; without one, it is the base model of `make demo`, which is made if it is not there yet.
vLLM, the sandbox and the loss are the ones that `oapl run` uses. It adds what a long run needs: files between the
stages, a ledger, DeepSpeed, evaluation. This file keeps everything in memory and trains with plain PyTorch.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

import oapl_core as oapl
from oapl_core.pretraining.pretrain import pretrain
from oapl_core.run_folder.opening import find

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "data/demo"
PROBLEMS, GROUP, MAX_TOKENS = 128, 8, 48  # problems of each set, answers to each, tokens of an answer
EPOCHS, BATCH, LEARNING_RATE = 2, 64, 5e-4
# An answer moves by about 1 / beta2 = 10 nats: the demo has 12 tokens, the paper 10,000, and 1e-3.
OBJECTIVE = oapl.Oapl(value_temperature=1.0, regression_temperature=0.1)
Rows = list[dict[str, Any]]


def sample(engine: oapl.SamplingEngine, prompts: list[list[int]], seed: int) -> list[oapl.SampledAnswer]:
    """Sample GROUP answers to each prompt, in order; temperature 1, no top-p: the log-probs are the policy's own."""
    # A seed for each answer: what one answer is does not depend on which others are decoded at the same time.
    repeated = [ids for ids in prompts for _ in range(GROUP)]
    asked = [oapl.Request(str(n), ids, seed=seed + n, max_tokens=MAX_TOKENS) for n, ids in enumerate(repeated)]
    answers = {answer.request.key: answer for answer in engine.sample(asked)}  # they come in the order they finish
    return [answers[request.key] for request in asked]


def judge(verifier: oapl.Verifier, problems: Rows, answers: list[oapl.SampledAnswer]) -> torch.Tensor:
    """Return the reward of each answer: 1 if its program passes every test or its formula is equal, else 0."""
    repeated = [problem for problem in problems for _ in range(GROUP)]
    texts, reasons = [answer.text for answer in answers], [answer.finish_reason for answer in answers]
    rewards = [verdict.reward for verdict in verifier.verify(repeated, texts, reasons)]
    # None is no verdict: the verifier failed, not the answer. `oapl run` leaves such answers out; here there are none.
    assert None not in rewards, "the verifier could not judge an answer; see `oapl doctor`"
    return torch.tensor(rewards)


def log_probs(model: torch.nn.Module, answers: list[oapl.SampledAnswer]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ln pi of each token and whether it was sampled, [S, T - 1]; column t is of token t + 1, predicted by t."""
    prompts = torch.tensor([len(answer.request.prompt_ids) for answer in answers])[:, None]
    rows = [torch.tensor([*answer.request.prompt_ids, *answer.response_ids]) for answer in answers]
    lengths, ids = torch.tensor([len(row) for row in rows])[:, None], pad_sequence(rows, batch_first=True)
    # No attention mask: padding stands to the right, where causal attention never lets a token look.
    logits = model(input_ids=ids).logits[:, :-1].float()  # float32: 16 bits would round a log-prob to two digits
    column = torch.arange(1, ids.shape[1])
    return logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0], (column >= prompts) & (column < lengths)


def train(model: torch.nn.Module, answers: list[oapl.SampledAnswer], reward: torch.Tensor) -> None:
    """Regress beta2 ln(pi / b) on r - V, where b is the policy that sampled; it stays the same for all the steps."""
    group = torch.arange(len(answers)) // GROUP
    advantage = OBJECTIVE.advantages(reward, group)  # r - V from whole groups, before they are scattered over steps
    # A group without a correct answer teaches nothing but to avoid what was sampled; the paper drops it.
    kept = (reward.view(-1, GROUP).amax(1) > 0).repeat_interleave(GROUP).nonzero()[:, 0]
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    steps = [rows for _ in range(EPOCHS) for rows in kept[torch.randperm(len(kept))].split(BATCH)]
    for number, rows in enumerate(steps, start=1):
        batch = [answers[i] for i in rows]
        log_pi, mask = log_probs(model, batch)
        # What the engine recorded of each token as it drew it. Never computed again: text does not say its tokens.
        log_b = torch.zeros_like(log_pi)
        log_b[mask] = torch.tensor([logprob for answer in batch for logprob in answer.logprobs])
        # sequences, groups and tokens of the batch: what an objective may take its mean over
        sizes = oapl.StepSizes(len(rows), len(group[rows].unique()), int(mask.sum()))
        inputs = oapl.Inputs(log_pi - log_b, mask, advantage[rows], reward[rows], group[rows], sizes)
        loss = OBJECTIVE.loss(inputs).value  # the mean over the batch of (beta2 sum_t ln(pi / b) - (r - V))^2
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # one odd batch must not undo the others
        optimizer.step()
        if number in (1, len(steps)) or number % 8 == 0:
            print(f"step {number:3} of {len(steps)}: loss {loss.item():.4f}")


def base_model(cache: Path = ROOT / "data/cache") -> Path:
    """The demo's tiny base model: pretrained on solutions of which a part is wrong, so that there is much to learn."""
    print(f"the demo's base model: taken from {cache}/models, or made there first", flush=True)
    with tempfile.TemporaryDirectory() as runs:  # only what `oapl run` does first; the run's folder is not kept
        places = [f"runs_dir={runs}", f"cache_dir={cache}", f"pretrain.solutions={DEMO}/solutions.jsonl"]
        run = find(ROOT / "deployments/experiments/demo.toml", places)
        pretrain(run)
        return run.base_model()


def main(model_dir: Path) -> tuple[float, float]:
    """One round; returns the share of correct answers to held-out problems before and after."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # its warnings are about what is meant here, such as a CPU
    torch.manual_seed(0)
    encode = oapl.load_encoder(model_dir)
    sets = {name: list(oapl.read_problem_set(DEMO / f"{name}.jsonl", name))[:PROBLEMS] for name in ("train", "heldout")}
    prompts = {name: [encode(oapl.messages(row, "plain"))[1] for row in rows] for name, rows in sets.items()}
    # The engine holds weights of its own in this process, so on a GPU it must leave memory for training.
    config = oapl.EngineConfig(max_model_len=256, dtype="float32", kv_cache_gib=0.5, gpu_memory_utilization=0.3)
    with oapl.Verifier() as verifier, oapl.SamplingEngine(model_dir, config) as engine:
        before = judge(verifier, sets["heldout"], sample(engine, prompts["heldout"], 10**6)).mean().item()
        answers = sample(engine, prompts["train"], 0)
        reward = judge(verifier, sets["train"], answers)
        print(f"{len(answers)} answers sampled, {reward.mean():.1%} correct; held-out {before:.1%}")
        model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        with torch.device("cuda" if torch.cuda.is_available() else "cpu") as device:  # where `train` makes its tensors
            train(model.to(device), answers, reward.to(device))
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            AutoTokenizer.from_pretrained(model_dir).save_pretrained(folder)
            engine.load(Path(folder))  # the next round would sample from here; this one only measures
        after = judge(verifier, sets["heldout"], sample(engine, prompts["heldout"], 10**6)).mean().item()
        print(f"held-out after {EPOCHS} epochs: {after:.1%} correct (before: {before:.1%})")
    return before, after


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else base_model())
