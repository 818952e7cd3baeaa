"""What checkpoints are asked: problems with their prompts, cut into parts, and where each part of the answers lies.

Reads tables.PROMPTS. A part holds whole problems and some 256 answers: what a crash costs at most, and how many
problems' tests are in memory. Every checkpoint gets the same seeds, so that what differs between two of them is less
often luck.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from oapl_core.rollouts.requests import Request, SampledAnswer
from oapl_core.rollouts.sampling import Prompts
from oapl_core.seeds import derive_seed
from oapl_core.settings.evaluation_folder import EvaluationFolderConfig
from oapl_core.tables import PROMPTS, read_table
from oapl_core.verdicts.extraction import opens_thinking

_PART_ANSWERS = 256


@dataclass(frozen=True)
class Questions:
    """Problems of one split with their prompts, and how they are asked."""

    split: str
    table: Path
    """tables.PROBLEMS that has them."""
    prompts: Prompts
    thinking: frozenset[str]
    """Problems whose prompt ends inside of <think>."""
    config: EvaluationFolderConfig
    """samples, seed, temperature, top_p, max_tokens and stop."""

    @classmethod
    def read(cls, problems: Path, prompts: Path, config: EvaluationFolderConfig) -> Self:
        """What two tables hold, of the settings' split if they name one; perhaps nothing."""
        split = config.problems.split
        rows = read_table(prompts, PROMPTS, only=("split", [split]) if split else None).to_pylist()
        ids = {row["problem_id"]: row["prompt_ids"] for row in rows}
        thinking = frozenset(row["problem_id"] for row in rows if opens_thinking(row["prompt"]))
        return cls(split or rows[0]["split"], problems, ids, thinking, config)

    @property
    def answers(self) -> int:
        """How many one checkpoint gives."""
        return len(self.prompts) * self.config.samples

    def parts(self) -> list[list[str]]:
        """Its problems in their order, cut where there are enough answers."""
        # whole problems, since their tests are read once for a part
        names, size = list(self.prompts), max(1, _PART_ANSWERS // self.config.samples)
        return [names[start : start + size] for start in range(0, len(names), size)]

    def requests(self, problems: Sequence[str]) -> Iterator[Request]:
        """Every request for these problems; the seed is the hash of seed, split, problem and sample."""
        config = self.config
        for problem in problems:
            for sample in range(config.samples):
                # no checkpoint in it: all get the same seeds
                seed = derive_seed(config.seed, "evaluation", self.split, problem, sample)
                key, prompt = f"{problem}/s{sample}", self.prompts[problem]
                stop = config.stop or ()
                how = config.max_tokens, config.temperature, config.top_p, stop
                yield Request(key, prompt, seed, *how, problem_id=problem)

    def place(self, answer: SampledAnswer) -> tuple[str, int]:
        """Problem and number of the answer."""
        problem, _, sample = answer.request.key.rpartition("/s")
        assert problem in self.prompts
        return problem, int(sample)


@dataclass(frozen=True)
class Target:
    """A checkpoint that answers questions."""

    label: str
    folder: Path
    policy_hash: str
    questions: Questions
    beginning: Path
    """Of the names of its parts."""
    inputs: Mapping[str, str]
    settings: Mapping[str, Any]

    def part(self, number: int) -> Path:
        """File of part ``number``."""
        return self.beginning.with_name(f"{self.beginning.name}-{number:05d}.parquet")

    @property
    def files(self) -> list[Path]:
        """Of every part."""
        return [self.part(number) for number in range(len(self.questions.parts()))]
