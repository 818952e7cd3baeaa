"""Whether a base model is fit for the study: ``python -m bench.claims.mixture.gates SCALE --model FOLDER --to DIR``.

Samples answers to problems of both tiers at T = 1, has them judged, and holds each number against a criterion that was
written before any model was measured (`GATES`, and docs/benchmarks/mixture.md). Prints a table and writes
DIR/gates-SCALE-HASH.json, HASH being the model's. Answers are kept as they come, so a killed command repeats few. A
gate whose number needs more answers than were sampled is not measured, and a study begins only where all of the
mixture's gates are met.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.claims.mixture import measuring
from bench.claims.mixture.measuring import Judged
from bench.claims.mixture.scales import FAMILIES, SCALES

if TYPE_CHECKING:
    from bench.claims.machine import Machine
    from oapl_core.rollouts.requests import Sampler
    from oapl_core.verdicts.verifier import Verifier

HERE = Path(__file__).resolve().parent
AT_ONCE = 16
"""Problems whose answers are sampled, judged and kept together."""
WHOLE = "mixture"
"""The scope that decides; the others are the families."""


@dataclass(frozen=True)
class Gate:
    """A number and where it must lie, ends included."""

    name: str
    tier: str
    low: float
    high: float

    def measured(self, problems: Sequence[Judged]) -> float | None:
        """The number; None where there are too few answers."""
        if self.name.startswith("pass@"):
            return measuring.pass_share(problems, int(self.name.removeprefix("pass@")))
        of = {"mixed groups": measuring.mixed_share, "length scatter": measuring.scatter, "cut": measuring.cut_share}
        return of[self.name](problems)

    def is_met(self, value: float | None) -> bool | None:
        """Whether a number lies there; None of none."""
        return None if value is None else self.low <= value <= self.high

    @property
    def wanted(self) -> str:
        """The criterion in words."""
        if self.name == "length scatter":
            return f"at least {self.low:g} of the mean"
        if self.high == 1:
            return f"at least {100 * self.low:g} %"
        return f"{100 * self.low:g} to {100 * self.high:g} %"


GATES = (
    Gate("pass@1", "usual", 0.25, 0.40),
    Gate("pass@1", "harder", 0.05, 0.25),
    Gate("pass@64", "usual", 0.70, 1.0),
    Gate("mixed groups", "usual", 0.50, 1.0),
    Gate("length scatter", "usual", 0.4, math.inf),
    Gate("cut", "usual", 0.01, 0.05),
)


def main() -> None:
    """Measure a model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scale", choices=list(SCALES))
    parser.add_argument("--model", type=Path, required=True, help="its folder")
    parser.add_argument("--sets", type=Path, default=Path("data/claims/mixture"), help="what `sets` wrote")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--problems", type=int, default=64, help="of each family and tier")
    parser.add_argument("-n", type=int, default=64, help="answers to each problem")
    options = parser.parse_args()
    measure(options.scale, options.model, options.sets, options.to, options.problems, options.n)


def measure(scale: str, model: Path, sets: Path, to: Path, problems: int, n: int) -> dict[str, Any]:
    """Sample, judge, print and write."""
    from oapl_core.rollouts.engine import SamplingEngine
    from oapl_core.settings.experiment_file import load_experiment
    from oapl_core.verdicts.verifier import Verifier

    config = load_experiment(HERE / f"{scale}.toml", [])
    with SamplingEngine(model, config.engine) as sampler, Verifier(config.verifier) as verifier:
        return measured(scale, model, sets, to, (problems, n), (sampler, verifier), config.sampling.max_tokens)


def measured(
    scale: str,
    model: Path,
    sets: Path,
    to: Path,
    size: tuple[int, int],
    means: tuple[Sampler, Verifier],
    max_tokens: int,
    at_once: int = AT_ONCE,
) -> dict[str, Any]:
    """The same with a sampler and a verifier that are there; ``size``: problems of each family and tier, answers."""
    problems, n = size
    rows = problems_of(sets / scale, problems)
    to.mkdir(parents=True, exist_ok=True)
    made = measuring.machine(model, rows, *means, max_tokens, to / "kept")
    started = time.monotonic()
    found = answered(made, n, at_once)
    seconds = time.monotonic() - started
    about = {"scale": scale, "model": model.name, "policy_hash": made.base_hash, "n": n, "problems": problems}
    about |= {"max_tokens": max_tokens, "sampler": means[0].name, "dtype": means[0].dtype}
    prompts = [len(ids) for ids in made.prompts["usual"].values()]
    speed = {"prompt_tokens": round(sum(prompts) / len(prompts), 1), "seconds": round(seconds, 1)}
    result = about | verdict(found) | speed
    path = to / f"gates-{scale}-{made.base_hash}.json"
    draft = path.with_name(f".tmp-{path.name}")
    draft.write_text(json.dumps(result, indent=1) + "\n")
    draft.rename(path)
    print(table(result))
    return result


def problems_of(sets: Path, many: int) -> dict[str, list[measuring.Row]]:
    """The first so many problems of each family: of training, and of the harder tier."""
    from oapl_core.problems.problem_set import read_problem_set

    harder = [r for r in read_problem_set(sets / "heldout.jsonl", "heldout") if measuring.family_of(r)[1] == "harder"]
    usual = list(read_problem_set(sets / "train.jsonl", "train"))
    return {"usual": measuring.chosen(usual, many), "harder": measuring.chosen(harder, many)}


def answered(machine: Machine, n: int, at_once: int = AT_ONCE) -> list[Judged]:
    """What the model answers to every problem, some problems at once."""
    from bench.claims.machine import Asked
    from oapl_core.seeds import derive_seed

    found = []
    for tier, prompts in machine.prompts.items():
        names = list(prompts)
        for first in range(0, len(names), at_once):
            own = names[first : first + at_once]
            asked = [Asked(name, f"{name}#{s}", derive_seed(0, "gates", name, s)) for name in own for s in range(n)]
            answers, _ = machine.answers(machine.base, machine.base_hash, asked, tier)
            for number, name in enumerate(own):
                found.append(measuring.judged(machine.problems[name], answers[number * n : number * n + n]))
            print(f"{tier}: {min(first + at_once, len(names))}/{len(names)} problems", flush=True)
    return found


def verdict(problems: Sequence[Judged]) -> dict[str, Any]:
    """Every gate for the mixture and for each family, and whether all of the mixture's are met."""
    rows = [row(gate, scope, _of(problems, gate.tier, scope)) for gate in GATES for scope in (WHOLE, *FAMILIES)]
    decisive = [one["is_met"] for one in rows if one["scope"] == WHOLE]
    lengths = {
        f"{scope} {tier}": round(measuring.mean_length(own), 1)
        for scope in (WHOLE, *FAMILIES)
        for tier in measuring.TIERS
        if (own := _of(problems, tier, scope))
    }
    return {"is_open": all(one is True for one in decisive), "gates": rows, "tokens": lengths}


def _of(problems: Sequence[Judged], tier: str, scope: str) -> list[Judged]:
    return [one for one in problems if one.tier == tier and scope in (WHOLE, one.family)]


def row(gate: Gate, scope: str, problems: Sequence[Judged]) -> dict[str, Any]:
    """A gate's line in the file."""
    value = gate.measured(problems)
    return {
        "gate": gate.name,
        "tier": gate.tier,
        "scope": scope,
        "value": None if value is None else round(value, 4),
        "wanted": gate.wanted,
        "is_met": gate.is_met(value),
        "problems": len(problems),
        "answers": sum(one.n for one in problems),
    }


def table(result: Mapping[str, Any]) -> str:
    """A result as Markdown."""
    head = (
        "| gate | tier | wanted | mixture | " + " | ".join(FAMILIES) + " | met |\n" + "|---" * (5 + len(FAMILIES)) + "|"
    )
    lines = [head]
    for gate in GATES:
        own = {one["scope"]: one for one in result["gates"] if (one["gate"], one["tier"]) == (gate.name, gate.tier)}
        values = " | ".join(shown(gate, own[scope]["value"]) for scope in (WHOLE, *FAMILIES))
        met = {True: "yes", False: "no", None: "not measured"}[own[WHOLE]["is_met"]]
        lines.append(f"| {gate.name} | {gate.tier} | {gate.wanted} | {values} | {met} |")
    return "\n".join(lines)


def shown(gate: Gate, value: float | None) -> str:
    """A number as the table has it."""
    if value is None:
        return ""
    return f"{value:.2f}" if gate.name == "length scatter" else f"{100 * value:.1f} %"


if __name__ == "__main__":
    main()
