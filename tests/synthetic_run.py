"""A plausible run folder from random numbers, written through ``oapl_core.run_folder.run.Run`` in about a second.

For tests of what reads runs (reports, queries); nothing in it was sampled, graded or trained.
"""

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from oapl_core import tables
from oapl_core.evaluation.measures import measures
from oapl_core.evaluation.scores import Resampling
from oapl_core.groups.build import build
from oapl_core.model_files.model_folder import policy_hash
from oapl_core.planning.plan import steps
from oapl_core.run_folder.ledger import StageEntry
from oapl_core.run_folder.run import Run
from oapl_core.settings.experiment import Experiment
from oapl_core.settings.experiment_file import parse_experiment

KINDS = ("stdin", "function", "math")
HOSTILE = "</pre><script>alert('model text')</script> | `````` \x1b[31m \ud800".encode("utf-8", "replace").decode()
"""In every wrong answer: what a report must show and not obey."""
UNTIL = ("problems", "rollouts", "verdicts", "groups", "training", "evaluation")


@dataclass(frozen=True)
class Sizes:
    """How large the run is."""

    train: int = 12
    validation: int = 6
    heldout: int = 12
    group: int = 4
    samples: int = 8
    epochs: tuple[int, ...] = (1, 3)


def experiment(runs_dir: Path, sizes: Sizes = Sizes(), seed: int = 0) -> Experiment:
    """Settings of a small run; its model folder is made by ``write_synthetic_run``."""
    values = {
        "name": "synthetic",
        "seed": seed,
        "runs_dir": str(runs_dir),
        "model": str(runs_dir / "base"),
        "problems": {"train": "train.jsonl", "validation": "validation.jsonl", "heldout": "heldout.jsonl"},
        "sampling": {"group_size": sizes.group, "max_tokens": 64, "problems_per_part": 8},
        "training": {"batch_size": 16, "learning_rate": 3e-4},
        "rounds": [{"epochs": n, "problems": None if i == 0 else sizes.train // 2} for i, n in enumerate(sizes.epochs)],
        "evaluation": {"validation_samples": 4, "heldout_samples": sizes.samples, "bootstrap_resamples": 300},
    }
    return parse_experiment(values, "the synthetic run")


def write_synthetic_run(
    runs_dir: Path, sizes: Sizes = Sizes(), until: str = "evaluation", gain: float = 0.3, seed: int = 0
) -> Run:
    """Write a run that got as far as ``until`` (one of UNTIL).

    Args:
        runs_dir: folder for the run folder and its base model.
        sizes: how many problems, answers and epochs.
        until: last stage that is finished in round 0; from "training" on all rounds are trained.
        gain: what the rounds together add to the share of correct answers.
        seed: of the random numbers.
    """
    write = _Writer(sizes, gain, seed, UNTIL.index(until))
    _model(runs_dir / "base", "base")
    run = Run.create(experiment(runs_dir, sizes, seed))
    write.problems(run)
    for number in range(len(sizes.epochs)):
        write.round(run, number)
    write.evaluation(run)
    for step in steps(run.config):
        if any(name.startswith(step.outputs) for name in run.ledger.artifacts()):
            run.ledger.append(StageEntry(step.label, round(write.random.uniform(5, 90), 3), 0))
    return run


def _model(folder: Path, content: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text(content)


class _Writer:
    def __init__(self, sizes: Sizes, gain: float, seed: int, until: int) -> None:
        self.sizes, self.gain, self.until = sizes, gain, until
        self.random = random.Random(seed)
        self.difficulty: dict[str, float] = {}

    def reaches(self, stage: str) -> bool:
        return UNTIL.index(stage) <= self.until

    def problems(self, run: Run) -> None:
        counts = {"train": self.sizes.train, "validation": self.sizes.validation, "heldout": self.sizes.heldout}
        rows = [self._problem(split, i) for split, count in counts.items() for i in range(count)]
        with run.writing(run.problems, {}, {}) as draft:
            draft.rows = tables.write_table(draft.path, tables.PROBLEMS, rows)
        prompts = [
            {
                "problem_id": r["problem_id"],
                "split": r["split"],
                "prompt": f"<user>{r['statement']}</user>",
                "prompt_ids": [1, 2, 3],
            }
            for r in rows
        ]
        with run.writing(run.prompts, run.inputs([run.problems]), {}) as draft:
            draft.rows = tables.write_table(draft.path, tables.PROMPTS, prompts)
            draft.details = {"dropped": {"prompt too long": 2}, "dropped_by_split": {"train": 2}}

    def _problem(self, split: str, index: int) -> dict[str, Any]:
        kind, problem_id = KINDS[index % 3], f"{split}-{index:05d}"
        self.difficulty[problem_id] = self.random.gauss(0, 0.22)
        tests = [] if kind == "math" else [{"input": "[[1]]", "output": "1"}] * 6
        return {
            "problem_id": problem_id,
            "split": split,
            "kind": kind,
            "statement": f"Print the sum of {index} numbers.",
            "starter_code": "def solve(a):" if kind == "function" else None,
            "entry_point": "solve" if kind == "function" else None,
            "tests": tests,
            "answer": "x + 1" if kind == "math" else None,
            "checker": None,
            "structure": f"{kind}: sum > first",
            **dict.fromkeys(("platform", "difficulty", "released", "flaw")),
            "source": "made-up",
        }

    def round(self, run: Run, number: int) -> None:
        if not self.reaches("rollouts" if number == 0 else "training"):
            return  # a later round needs the checkpoint of the one before
        identity = policy_hash(run.policy(number))
        ids = [i for i in self.difficulty if i.startswith("train")][: run.config.rounds[number].problems]
        rollouts = [self._rollout(run, number, i, sample, identity) for i in ids for sample in range(self.sizes.group)]
        verdicts = [self._verdict(r) for r in rollouts]
        size = (run.config.sampling.problems_per_part or 128) * self.sizes.group
        for part, start in enumerate(range(0, len(rollouts), size)):
            name, rows, judged = (
                f"part-{part:05d}.parquet",
                rollouts[start : start + size],
                verdicts[start : start + size],
            )
            path = run.rollouts(number) / name
            with run.writing(path, run.inputs([run.prompts]), {}) as draft:
                draft.rows = tables.write_table(draft.path, tables.ROLLOUTS, rows)
                tokens = sum(len(r["response_ids"]) for r in rows)
                draft.details = {
                    "policy_hash": identity,
                    "problems": len({r["problem_id"] for r in rows}),
                    "response_tokens": tokens,
                    "truncated": sum(r["finish_reason"] == "length" for r in rows),
                    "engine": "vllm 0.32.0",
                    "startup_s": {"import": 20.0, "engine": 4.5},
                }
            if self.reaches("verdicts"):
                with run.writing(run.verdicts(number) / name, run.inputs([path]), {}) as draft:
                    draft.rows = tables.write_table(draft.path, tables.VERDICTS, judged)
                    draft.details = {"outcomes": dict(Counter(v["outcome"] for v in judged))}
        if self.reaches("groups"):
            build(run, number)  # the real stage: its ledger details are what reports read
        if self.reaches("training"):
            self._train(run, number)

    def _rollout(self, run: Run, number: int, problem_id: str, sample: int, identity: str) -> dict[str, Any]:
        right = self.random.random() < self._skill(problem_id, number)
        cut = not right and self.random.random() < 0.08
        tokens = 64 if cut else self.random.randint(8, 60)
        return {
            "run": run.root.name,
            "round": number,
            "problem_id": problem_id,
            "rollout_id": f"{problem_id}/r{number:02d}/s{sample}",
            "sample": sample,
            "policy_hash": identity,
            "response_ids": [self.random.randrange(300) for _ in range(tokens)],
            "logprobs": [-self.random.expovariate(4) for _ in range(tokens)],
            "logprobs_mode": "raw_logprobs",
            "finish_reason": "length" if cut else "stop",
            "text": "print(1)" if right else f"print(2) {HOSTILE}",
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "max_tokens": 64,
            "seed": self.random.randrange(2**31),
            "engine": "vllm 0.32.0",
            "sampled_at": datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=sample),
        }

    def _skill(self, problem_id: str, rounds_done: int) -> float:
        return 0.3 + self.difficulty[problem_id] + self.gain * rounds_done / len(self.sizes.epochs)

    def _outcome(self, right: bool, cut: bool) -> str:
        if right or cut:
            return "passed" if right else "truncated"
        return self.random.choices(("wrong_answer", "runtime_error", "time_limit", "verifier_error"), (80, 12, 6, 2))[0]

    def _verdict(self, rollout: Mapping[str, Any]) -> dict[str, Any]:
        right = rollout["text"] == "print(1)"
        outcome = self._outcome(right, rollout["finish_reason"] == "length")
        return {
            "rollout_id": rollout["rollout_id"],
            "problem_id": rollout["problem_id"],
            "reward": _reward(outcome),
            "correct": tables.is_correct(_reward(outcome)),
            "outcome": outcome,
            "tests_passed": 6 if right else 1,
            "tests_run": 6 if right else 2,
            "first_failing_test": None if right else 1,
            "excerpt": None if right else "2",
            "answer": rollout["text"],
            "cpu_s": 0.01,
            "wall_s": 0.02,
            "peak_memory_mb": 9.0,
            "verifier_version": "1",
            "sandbox_level": "full",
        }

    def _mismatch(self, run: Run, number: int) -> None:
        rows = [
            {
                "rollout_id": f"train-{i:05d}/r{number:02d}/s0",
                "response_tokens": 20,
                "mean_difference": 1e-5 * i,
                "max_difference": 1e-4 * i,
                "sum_difference": -1e-4 * i,
                "k3": 1e-9,
                "first_drift": 3 if i == 2 else None,
            }
            for i in range(4)
        ]
        path = run.checkpoints(number) / "engine_mismatch.parquet"
        with run.writing(path, run.inputs([run.groups(number)]), {}) as draft:
            draft.rows = tables.write_table(draft.path, tables.MISMATCHES, rows)
            draft.details = {
                "sequences": 4,
                "share": 0.125,
                "tokens": 80,
                "mean": 1.5e-5,
                "max": 3e-4,
                "k3": 1e-9,
                "sequence_sum_mean": -1.5e-4,
                "sequence_sum_max": 3e-4,
                "worst": rows[3]["rollout_id"],
                "drifted": 1,
            }

    def _train(self, run: Run, number: int) -> None:
        self._mismatch(run, number)
        epochs, steps_each = run.config.rounds[number].epochs, 6
        for epoch in range(1, epochs + 1):
            lines = []
            for i in range(steps_each):
                step = (epoch - 1) * steps_each + i + 1
                progress = step / (steps_each * epochs)
                right = None if step == 2 else 3 * progress + self.random.gauss(0, 0.3)
                lines.append(
                    {
                        "step": step,
                        "epoch": epoch,
                        "learning_rate": 3e-4 * (1 - 0.95 * progress),
                        "grad_norm": self.random.uniform(0.2, 0.5),
                        "seconds": 1.0,
                        "loss": 0.25 - 0.1 * progress + self.random.gauss(0, 0.01),
                        "sequences": 16,
                        "tokens": 800,
                        "log_ratio": progress + self.random.gauss(0, 0.2),
                        "log_ratio_right": right,
                        "log_ratio_wrong": -2 * progress,
                    }
                )
            with run.writing(run.checkpoint(number, epoch), run.inputs([run.groups(number)]), {}) as draft:
                _model(draft.path, f"round {number} epoch {epoch}")
                (draft.path / "training_metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
                draft.rows = 96
                draft.details = {"policy_hash": policy_hash(draft.path), "epoch": epoch, "start_up_s": 11.0}
                draft.details["steps"] = len(lines)

    def evaluation(self, run: Run) -> None:
        """Every epoch of the last round on validation; base, earlier rounds and the second last epoch held out."""
        if not self.reaches("evaluation"):
            return
        last = len(self.sizes.epochs) - 1
        chosen = max(1, self.sizes.epochs[last] - 1)
        measured = [("base", run.base_model(), 0.0, "heldout")]
        measured += [(f"round {n}", run.checkpoint(n, self.sizes.epochs[n]), n + 1.0, "heldout") for n in range(last)]
        epochs = range(1, self.sizes.epochs[last] + 1)
        named = {e: (f"round {last} epoch {e}", run.checkpoint(last, e), last + e / chosen) for e in epochs}
        measured += [(*entry, "validation") for entry in named.values()]
        measured.append((*named[chosen], "heldout"))
        rows = [row for entry in measured for row in self._answers(run, *entry)]
        with run.writing(run.evaluation(), run.inputs([run.prompts]), {}) as draft:
            draft.rows = tables.write_table(draft.path, tables.EVALUATIONS, rows)
            draft.details = {"chosen": named[chosen][0], "chosen_epoch": chosen, **self._measures(run, rows)}

    def _measures(self, run: Run, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """As the evaluation writes them."""
        found: dict[str, Any] = {"heldout": {}, "validation": {}}
        for split, checkpoint in dict.fromkeys((r["split"], r["checkpoint"]) for r in rows):
            mine = [r for r in rows if (r["split"], r["checkpoint"]) == (split, checkpoint)]
            found[split][checkpoint] = measures(mine, Resampling.of(run.config))
        return found

    def _answers(self, run: Run, checkpoint: str, folder: Path, rounds_done: float, split: str) -> list[dict[str, Any]]:
        settings, rows, identity = run.config.evaluation, [], policy_hash(folder)
        ids = [i for i in self.difficulty if i.startswith(split)]
        for index, problem_id in enumerate(ids):
            for sample in range(settings.heldout_samples if split == "heldout" else settings.validation_samples):
                right = self.random.random() < self._skill(problem_id, 0) + self.gain * rounds_done / len(
                    self.sizes.epochs
                )
                cut = not right and self.random.random() < 0.05
                outcome = self._outcome(right, cut)
                rows.append(
                    {
                        "checkpoint": checkpoint,
                        "policy_hash": identity,
                        "split": split,
                        "problem_id": problem_id,
                        "kind": KINDS[index % 3],
                        "sample": sample,
                        "reward": _reward(outcome),
                        "correct": tables.is_correct(_reward(outcome)),
                        "outcome": outcome,
                        "response_tokens": self.random.randint(8, 64),
                        "finish_reason": "length" if cut else "stop",
                        "text": "print(1)" if right else f"print(2) {HOSTILE}",
                        "temperature": settings.temperature,
                        "top_p": settings.top_p,
                        "max_tokens": 64,
                        "seed": sample,
                    }
                )
        return rows


def _reward(outcome: str) -> float | None:
    return None if outcome == "verifier_error" else float(outcome == "passed")
