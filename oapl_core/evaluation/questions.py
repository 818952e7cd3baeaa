"""Questions to checkpoints: problems with their prompts, and where each checkpoint's answers and verdicts lie.

Reads tables.PROMPTS. A part holds whole problems and some 256 answers: what is judged at once, and how many problems'
tests are in memory. Every checkpoint gets the same seeds, so that what differs between two of them is less often luck.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from oapl_core.errors import DataError
from oapl_core.rollouts.parts import Part, Provenance, cut
from oapl_core.rollouts.sampling import Asking, Prompts
from oapl_core.run_folder.parts import Wanted
from oapl_core.run_folder.recorded import Recorded
from oapl_core.run_folder.run import ROLLOUTS_DIR, Run
from oapl_core.run_folder.run_record import answers, verdicts_on
from oapl_core.settings.evaluation_folder import EvaluationFolderConfig
from oapl_core.settings.sampling import SamplingConfig
from oapl_core.tables import EVALUATIONS, PROBLEMS, PROMPTS, read_table, schema_of
from oapl_core.verdicts.verify import Judging

if TYPE_CHECKING:
    import pyarrow as pa

_PART_ANSWERS = 256
_AGAIN = "--redo evaluation"


@dataclass(frozen=True)
class Questions:
    """Problems of one split with their prompts, and how they are asked."""

    split: str
    table: Path
    """tables.PROBLEMS that has them."""
    prompts_table: Path
    """tables.PROMPTS that has their prompts."""
    prompts: Prompts
    config: EvaluationFolderConfig
    """samples, seed, temperature, top_p, max_tokens and stop."""
    parts: Collection[int] | None = None
    """Numbers of the parts that are asked; None: all."""

    @classmethod
    def read(cls, problems: Path, prompts: Path, config: EvaluationFolderConfig) -> Self:
        """Read two tables, of the settings' split if they name one; there may be no problem in it."""
        split = config.problems.split
        columns = ["problem_id", "split", "prompt_ids"]
        rows = read_table(prompts, PROMPTS, columns, ("split", [split]) if split else None).to_pylist()
        ids = {row["problem_id"]: row["prompt_ids"] for row in rows}
        return cls(split or rows[0]["split"], problems, prompts, ids, config)

    def fewer(self, problems: int | None) -> Self:
        """Ask only parts with ``problems`` or some more, spread over all of them; None: all.

        Whole parts, as all of them would be asked: who asks all later finds these.
        """
        parts = len(self.cut(Path()))
        wanted = parts if problems is None else math.ceil(problems / self.problems_per_part)
        if wanted >= parts:
            return self
        # a file's order often says where problems come from or how hard they are
        return replace(self, parts=[number * parts // wanted for number in range(wanted)])

    def cut(self, folder: Path) -> list[Part]:
        """Return the parts that are asked, without rows, with files in ``folder``."""
        parts = cut(list(self.prompts), self.problems_per_part, self.config.samples, folder)
        return parts if self.parts is None else [parts[number] for number in self.parts]

    def otherwise(self) -> Iterator[Self]:
        """Yield the same questions in each other way of the settings' ``also``; a subset has whole parts of its own."""
        for one in self.config.also:
            samples = self.config.samples if one.temperature else 1  # without chance all would be the same
            ks = tuple(k for k in self.config.ks if k <= samples)
            values = {**one.model_dump(), "samples": samples, "ks": ks, "also": ()}
            asked = replace(self, config=self.config.model_copy(update=values), parts=None)
            yield asked if self.parts is None else asked.fewer(len(self.parts) * self.problems_per_part)

    @property
    def answers(self) -> int:
        """Number of answers that one checkpoint gives, in each way."""
        return sum(part.answers for part in self.cut(Path())) + sum(one.answers for one in self.otherwise())

    @property
    def problems_per_part(self) -> int:
        """Number of whole problems that make up a part."""
        # whole problems, since their tests are read once for a part
        return max(1, _PART_ANSWERS // self.config.samples)


@dataclass(frozen=True)
class Target:
    """A checkpoint that answers questions."""

    label: str
    questions: Questions
    asking: Asking
    judging: Judging
    others: tuple["Target", ...] = ()
    """The same checkpoint, decoded otherwise; their answers lie beside its own."""

    @classmethod
    def of(cls, folder: Recorded, label: str, model: Path, policy_hash: str, asked: Questions, place: Path) -> Self:
        """Ask ``asked`` of the checkpoint ``model``; its rollouts and verdicts lie in ``place``."""
        config = asked.config
        # samples too: the parts' borders depend on it
        settings = config.model_dump(include={"seed", "samples", "temperature", "top_p", "max_tokens"})
        settings |= {"split": asked.split, "stop": config.stop, **config.engine.slice}
        if config.environment:
            settings["environment"] = config.environment.slice
        inputs = folder.inputs([asked.prompts_table, model])
        sampling = folder.config.sampling if isinstance(folder, Run) else SamplingConfig()
        asking = Asking(
            title=f"{label}, {asked.split} problems",
            folder=folder,
            rollouts=place / ROLLOUTS_DIR,
            provenance=Provenance(policy_hash, inputs, settings),
            model=model,
            prompts=asked.prompts,
            # no checkpoint in it: all get the same seeds
            seed_words=(config.seed, "evaluation", asked.split),
            mark=place.name,
            problems=asked.table,
            words=config,
            engine=config.engine,
            max_tokens=config.max_tokens,
            flush_s=sampling.flush_s,
            again=_AGAIN,
            temperature=config.temperature,
            top_p=config.top_p,
            stop=config.stop or (),
            environment=config.environment,
        )
        advice = config.environment.advice(_AGAIN) if config.environment else ""
        how = config.verifier, config.reward, config.max_tokens, config.verifier.max_error_share, advice
        others = []
        for one in asked.otherwise():
            name = one.config.decoding
            beside = place.with_name(place.name + one.config.ending)
            others.append(cls.of(folder, f"{label}, {name}", model, policy_hash, one, beside))
        return cls(label, asked, asking, Judging(folder, asked.table, asked.prompts_table, *how), tuple(others))

    @property
    def folder(self) -> Path:
        """Folder of the checkpoint."""
        return self.asking.model

    @property
    def policy_hash(self) -> str:
        """Identity of the checkpoint."""
        return self.asking.provenance.policy_hash

    def parts(self) -> list[Part]:
        """Return the checkpoint's parts, without rows."""
        return self.questions.cut(self.asking.rollouts)

    @cached_property
    def rollouts(self) -> list[Path]:
        """File of every part of its answers."""
        return [part.path for part in self.parts()]

    @property
    def files(self) -> list[Path]:
        """Files of its answers and of the verdicts on them, in each way."""
        return [*self.rollouts, *map(verdicts_on, self.rollouts), *(path for one in self.others for path in one.files)]

    def is_sampled(self, part: Path) -> bool:
        """Tell whether the answers of a part are recorded, of these inputs and settings."""
        return self.asking.provenance.has_made(self.asking.folder, part)

    def is_judged(self, part: Path) -> bool:
        """Tell whether the verdicts on a part's answers are recorded, too."""
        return self.is_sampled(part) and self.judging.is_done(part, verdicts_on(part))

    @property
    def wanted_rollouts(self) -> Wanted:
        """Parts of its answers, as a store is told of them."""
        return Wanted(self.asking.folder, self.asking.rollouts, self.is_sampled)

    @property
    def wanted_verdicts(self) -> Wanted:
        """Parts of the verdicts on its answers, as a store is told of them."""
        rollouts = self.asking.rollouts
        place = verdicts_on(rollouts / "any").parent
        return Wanted(self.asking.folder, place, lambda verdicts: self.is_judged(rollouts / verdicts.name))

    @cached_property
    def _kinds(self) -> dict[str, str]:
        columns = read_table(self.questions.table, PROBLEMS, ["problem_id", "kind"]).to_pydict()
        return dict(zip(columns["problem_id"], columns["kind"], strict=True))

    def table(self, part: Path) -> "pa.Table":
        """Return the judged answers of a part, with the columns of tables.EVALUATIONS.

        Raises:
            DataError: another model gave them, or they are missing or broken.
        """
        import polars as pl

        frame = answers(part, with_texts=True)
        if others := set(frame["policy_hash"]) - {self.policy_hash}:
            raise DataError(f"{part}: has answers of model {min(others)}, not of {self.label}; delete it to ask again")
        frame = frame.with_columns(
            checkpoint=pl.lit(self.label),
            split=pl.lit(self.questions.split),
            kind=pl.col("problem_id").replace_strict(self._kinds, return_dtype=pl.String),
        )
        schema = schema_of(EVALUATIONS)
        return frame.select(schema.names).to_arrow(compat_level=pl.CompatLevel.oldest()).cast(schema)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield rows of tables.EVALUATIONS without their texts, one part in memory at a time."""
        for part in self.rollouts:
            yield from self.table(part).drop_columns(["text"]).to_pylist()
