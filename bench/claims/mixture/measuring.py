"""What a model of the mixture answers, and what that says: correct answers, lengths, cuts, different correct answers.

`machine` brings engine, judge and problems together without a run folder, so that any model folder can be measured.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.claims.mixture import search
from oapl_core.evaluation.pass_at_k import pass_at_k

if TYPE_CHECKING:
    from bench.claims.machine import Answer, Machine
    from oapl_core.rollouts.requests import SampledAnswer, Sampler
    from oapl_core.verdicts.verifier import Verifier

Row = Mapping[str, Any]
TIERS = ("usual", "harder")
GROUP = 8
"""Answers of a group."""


@dataclass(frozen=True)
class Judged:
    """A problem's answers."""

    family: str
    tier: str
    right: int
    judged: int
    lengths: Sequence[int]
    """Tokens of each answer."""
    cut: int
    nats: float = 0.0
    """Sum of -ln pi over all tokens."""

    @property
    def n(self) -> int:
        """Answers, judged or not."""
        return len(self.lengths)


def family_of(row: Row) -> tuple[str, str]:
    """Family and tier of a problem."""
    family, tier = row["structure"].partition(":")[0].split()
    return family, tier


def chosen(rows: Iterable[Row], many: int) -> list[Row]:
    """The first so many problems of each family, those of one tier."""
    found = defaultdict[str, list[Row]](list)
    for row in rows:
        family, _ = family_of(row)
        if len(found[family]) < many:
            found[family].append(row)
    return [row for own in found.values() for row in own]


def machine(
    model: Path, rows: Mapping[str, Sequence[Row]], sampler: Sampler, verifier: Verifier, max_tokens: int, kept: Path
) -> Machine:
    """Engine and judge with problems by the name of their set, and prompts as the model's tokenizer makes them."""
    from transformers import PreTrainedTokenizerFast

    from bench.claims.machine import Machine
    from oapl_core.model_files.model_folder import policy_hash

    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    prompts = {
        name: {row["problem_id"]: prompt_of(tokenizer, row["statement"]) for row in own} for name, own in rows.items()
    }
    problems = {row["problem_id"]: {**row, "is_thinking": False} for own in rows.values() for row in own}
    return Machine(sampler, verifier, prompts, problems, model, policy_hash(model), max_tokens, kept)


def prompt_of(tokenizer: Any, statement: str) -> list[int]:
    """Ids of a prompt in the style `plain`."""
    conversation = [{"role": "user", "content": statement}]
    text = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
    ids: list[int] = tokenizer(text)["input_ids"]
    return ids


def judged(row: Row, answers: Sequence[Answer]) -> Judged:
    """What a problem's answers come to."""
    family, tier = family_of(row)
    return Judged(
        family,
        tier,
        right=sum(one.reward == 1 for one in answers),
        judged=sum(one.reward is not None for one in answers),
        lengths=[len(one.response_ids) for one in answers],
        cut=sum(one.is_cut for one in answers),
        nats=-sum(sum(one.logprobs) for one in answers),
    )


def pass_share(problems: Sequence[Judged], k: int) -> float | None:
    """Mean of pass@k; None where a problem has fewer answers."""
    if not problems or min(one.judged for one in problems) < k:
        return None
    return math.fsum(pass_at_k(one.judged, one.right, k) for one in problems) / len(problems)


def mixed_share(problems: Sequence[Judged]) -> float | None:
    """Expected share of groups with correct and other answers, groups being drawn from the answers of each problem."""
    if not problems or min(one.judged for one in problems) < GROUP:
        return None
    return math.fsum(_mixed(one.judged, one.right) for one in problems) / len(problems)


def _mixed(n: int, right: int) -> float:
    alike = math.comb(right, GROUP) + math.comb(n - right, GROUP)
    return 1 - alike / math.comb(n, GROUP)


def scatter(problems: Sequence[Judged]) -> float | None:
    """Standard deviation of the answers' lengths over their mean."""
    lengths = [length for one in problems for length in one.lengths]
    if not lengths:
        return None
    mean = math.fsum(lengths) / len(lengths)
    return math.sqrt(math.fsum((length - mean) ** 2 for length in lengths) / len(lengths)) / mean


def cut_share(problems: Sequence[Judged]) -> float | None:
    """Share of answers that had no end."""
    answers = sum(one.n for one in problems)
    return sum(one.cut for one in problems) / answers if answers else None


def mean_length(problems: Sequence[Judged]) -> float:
    """Tokens of an answer."""
    return sum(map(sum, (one.lengths for one in problems))) / sum(one.n for one in problems)


def canonical(family: str, text: str) -> str:
    """One text for correct answers that are the same: of a search its expression, of others the whole answer."""
    if family != "search":
        return text.strip()
    steps = search.steps_of(text.rpartition("\\boxed{")[2].rpartition("}")[0])
    return search.canonical(steps) if steps else text.strip()


def widths(machine: Machine, folder: Path, rows: Sequence[Row], n: int) -> list[dict[str, Any]]:
    """By problem: correct answers of n at T = 1, different ones, lengths, cuts, entropy; and correct ones at 0.6."""
    machine.sampler.load(folder)
    # all problems at once: problem by problem a GPU would wait for each one's longest answer
    warm = _answered(machine, rows, range(n), (1.0, 1.0))
    sharp = _answered(machine, rows, range(n, n + n // 16), (0.6, 0.95))
    found = []
    for row, own, few in zip(rows, warm, sharp, strict=True):
        right = [answer.text for answer, is_right in own if is_right]
        tokens = [len(answer.response_ids) for answer, _ in own]
        found.append(
            {
                "problem": row["problem_id"],
                "right": len(right),
                "different": len({canonical(family_of(row)[0], text) for text in right}),
                "tokens": tokens,
                "cut": sum(answer.finish_reason == "length" for answer, _ in own),
                "entropy": -sum(sum(answer.logprobs or ()) for answer, _ in own) / max(1, sum(tokens)),
                "right_sharp": sum(is_right for _, is_right in few),
                "n_sharp": len(few),
            }
        )
    return found


def _answered(
    machine: Machine, rows: Sequence[Row], numbers: range, way: tuple[float, float]
) -> list[list[tuple[SampledAnswer, bool]]]:
    """Answers of some numbers to each problem at a temperature and top-p, and whether each is correct."""
    from oapl_core.rollouts.requests import Request
    from oapl_core.seeds import derive_seed

    names, prompts = [row["problem_id"] for row in rows], machine.prompts["heldout"]
    requests = [
        Request(f"{name}#{s}", prompts[name], derive_seed(0, "widths", name, s), machine.max_tokens, *way)
        for name in names
        for s in numbers
    ]
    by_key = {one.request.key: one for one in machine.sampler.sample(iter(requests), True)}
    answers = [by_key[one.key] for one in requests]
    problems = [machine.problems[name] for name in names for _ in numbers]
    given = [answer.text for answer in answers], [answer.finish_reason for answer in answers]
    right = [verdict.reward == 1 for verdict in machine.verifier.verify(problems, *given)]
    own = list(zip(answers, right, strict=True))
    return [own[first : first + len(numbers)] for first in range(0, len(own), len(numbers))]
