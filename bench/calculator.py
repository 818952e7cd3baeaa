"""Does a small model learn to ask a calculator for sums that it cannot do in its head? ``python -m bench.calculator``.

    python -m bench.calculator --to DIR [--seeds 0 1 2]    # runs, then measures; what is finished is not done again
    python -m bench.calculator --collect DIR               # docs/benchmarks/data/calculator.json and the figure

Each seed is a run of deployments/experiments/calculator.toml. The checkpoint that round 0 made and the last one
answer the 200 held-out sums, twice each at T = 1, with the calculator and without: then a call is the end, as nobody
answers it.

Criterion, written before the runs: in every seed the trained checkpoint uses the tool in at least 90 % of its answers
and is right in at least 80 %; the checkpoint before is right in at most 40 % with the tool; without it neither is right
in more than 10 %.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from oapl_core.environments.turn_sampler import turn_sampler
from oapl_core.rollouts.engine import SamplingEngine
from oapl_core.rollouts.requests import Request, SampledAnswer
from oapl_core.run_folder.run import Run
from oapl_core.seeds import derive_seed
from oapl_core.tables import PROBLEMS, PROMPTS, read_table
from oapl_core.verdicts.verifier import Verifier

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENT = ROOT / "deployments" / "experiments" / "calculator.toml"
DATA = ROOT / "docs" / "benchmarks" / "data" / "calculator.json"
FIGURE = ROOT / "docs" / "benchmarks" / "calculator.png"
SAMPLES = 2


def main() -> None:
    """Run and measure, or collect."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--collect", type=Path)
    options = parser.parse_args()
    if options.to:
        folder = options.to.resolve()
        for seed in options.seeds:
            settings = [f"seed={seed}", f"runs_dir={folder / 'runs'}", f"cache_dir={folder / 'cache'}"]
            command = [sys.executable, "-m", "deployments.cli", "run", str(EXPERIMENT), *settings]
            subprocess.run(command, check=True, cwd=ROOT)
            measured = folder / f"seed{seed}.json"
            if not measured.exists():
                found = measure(Run.open(folder / "runs" / f"calculator-seed{seed}"))
                measured.write_text(json.dumps(found, indent=1) + "\n")
    if options.collect:
        found = {path.stem: json.loads(path.read_text()) for path in sorted(options.collect.glob("seed*.json"))}
        DATA.write_text(json.dumps(found, indent=1) + "\n")
        draw(found)


def checkpoints(run: Run) -> dict[str, Path]:
    """The one that round 0, of demonstrations, made, and the last one."""
    last = len(run.config.rounds) - 1
    return {"before": run.policy(1), "after": run.checkpoint(last, run.config.rounds[last].epochs)}


def measure(run: Run) -> dict[str, Any]:
    """Accuracy and use of the tool of both checkpoints, with the tool and without."""
    rows = read_table(run.prompts, PROMPTS, only=("split", ["heldout"])).to_pylist()
    prompts = {row["problem_id"]: row["prompt_ids"] for row in rows}
    problems = {row["problem_id"]: row for row in read_table(run.problems, PROBLEMS).to_pylist()}
    found: dict[str, Any] = {"rounds": [of_round(run, number) for number in range(1, len(run.config.rounds))]}
    folders = checkpoints(run)
    with SamplingEngine(folders["before"], run.config.engine) as engine, Verifier(run.config.verifier) as verifier:
        for name, folder in folders.items():
            engine.load(folder)
            for with_tool in (True, False):
                answers = asked(run, engine, folder, prompts, with_tool)
                of = [problems[answer.request.problem_id] for answer in answers]
                verdicts = verifier.verify(of, [a.text for a in answers], [a.finish_reason for a in answers])
                found[f"{name}, {'with' if with_tool else 'without'} the tool"] = {
                    "answers": len(answers),
                    "right": sum(verdict.reward == 1.0 for verdict in verdicts) / len(answers),
                    "asked": sum("<calc>" in said(answer, engine) for answer in answers) / len(answers),
                }
    return found


def said(answer: SampledAnswer, engine: SamplingEngine) -> str:
    """All that the model said, also in earlier turns."""
    text: str = engine._tokenizer.decode(answer.response_ids)
    return text


def asked(
    run: Run, engine: SamplingEngine, folder: Path, prompts: dict[str, list[int]], with_tool: bool
) -> list[SampledAnswer]:
    """Answers to the held-out problems; the same seeds for every checkpoint."""
    requests = [
        Request(f"{name}/s{s}", ids, derive_seed(run.config.seed, "measured", name, s), 96, problem_id=name)
        for name, ids in prompts.items()
        for s in range(SAMPLES)
    ]
    config = run.config
    if not with_tool:
        return list(engine.sample(requests))
    assert config.environment
    with turn_sampler(engine, config.environment, config.problems, config.engine, (), folder, run.problems) as in_turns:
        return list(in_turns.sample(requests))


def of_round(run: Run, number: int) -> dict[str, float]:
    """Of the training rollouts of a round."""
    import polars as pl

    rollouts = pl.read_parquet(run.rollouts(number) / "part-*.parquet", columns=["rollout_id", "tool_calls"])
    verdicts = pl.read_parquet(run.verdicts(number) / "part-*.parquet", columns=["rollout_id", "reward"])
    both = rollouts.join(verdicts, on="rollout_id").with_columns(used=pl.col("tool_calls").list.len() > 0)
    right = both.filter("used")["reward"].mean()
    return {
        "rollouts": both.height,
        "asked": float(both["used"].mean()),  # type: ignore[arg-type]
        "right": float(both["reward"].mean()),  # type: ignore[arg-type]
        "right_if_asked": 0.0 if right is None else float(right),  # type: ignore[arg-type]
    }


def draw(found: dict[str, Any]) -> None:
    """Before and after, each seed a line; with the tool and without."""
    import matplotlib.pyplot as plt

    with plt.style.context(str(ROOT / "oapl_core" / "reports" / "figures.mplstyle")):
        figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.0), sharey=True, layout="constrained")
        for axis, (key, title) in zip(
            axes, (("right", "correct answers"), ("asked", "answers that ask the calculator")), strict=True
        ):
            # who asks has not seen yet whether anybody answers: both lines of the right panel would be one
            for with_tool, colour in (("with", "C0"), ("without", "C1"))[: 2 if key == "right" else 1]:
                for number, seed in enumerate(found.values()):
                    values = [100 * seed[f"{when}, {with_tool} the tool"][key] for when in ("before", "after")]
                    label = f"{with_tool} the tool" if number == 0 else None
                    axis.plot([0, 1], values, marker="o", color=colour, label=label)
            axis.set_xticks([0, 1], ["demonstrations", "after two rounds"])
            axis.set_xlim(-0.3, 1.3)
            axis.set_ylim(-4, 104)
            axis.set_title(title)
        axes[0].set_ylabel("% of held-out answers")
        axes[0].legend(loc="upper left")
        figure.savefig(FIGURE, dpi=160)


if __name__ == "__main__":
    main()
