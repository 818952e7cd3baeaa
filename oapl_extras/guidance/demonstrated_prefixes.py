"""Answers that begin with a stored one, ``rows = {with_prefixes = FILE}`` (PrefixRL, arXiv 2601.18795).

The last round that asked a problem may have found no correct answer. This round's answers to it then begin with the
beginning of a demonstration, and the policy samples the rest. All rows of a group share the beginning. Its token ids
are those of the demonstration, before which the prompt's own stand: nothing is decoded and encoded again. Verifier and
rewards see the whole. The beginning has no log-probs and is not trained on: `loss_mask` is false there.
"""

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from oapl_core.seeds import derive_seed
from oapl_core.settings.problems import ProblemFiles
from oapl_core.settings.rows import RowSource
from oapl_core.settings_group import Share
from oapl_extras.guidance.exclusions import refuse
from oapl_extras.guidance.with_demonstrations import WithDemonstrations

if TYPE_CHECKING:
    from pathlib import Path

    from oapl_core.rollouts.requests import Sampler
    from oapl_core.run_folder.run import Run
    from oapl_core.settings.experiment import Experiment
    from oapl_extras.guidance.demonstrated import WorkedAnswer
    from oapl_extras.guidance.prefixed import Beginning


class WithPrefixes(RowSource):
    """Sampled answers, of which those to unsolved problems begin with a stored answer (docs/extras/guidance.md)."""

    with_prefixes: Annotated[ProblemFiles, Field(min_length=1)]
    """A file of correct answers, or a list of files, as for `demonstrations`. Those of problems that the run trains on
    are used."""
    shortest: Share = 0.2
    """Least share of the stored answer that is given, of its tokens."""
    longest: Share = 0.8
    """Largest share that is given. The share of each problem and round is drawn between the two."""

    @model_validator(mode="after")
    def _is_a_band(self) -> Self:
        if self.shortest > self.longest:
            raise ValueError(f"shortest = {self.shortest:g} is more than longest = {self.longest:g}")
        return self

    @property
    def files(self) -> "tuple[Path, ...]":
        """Files that `with_prefixes` names."""
        return self.with_prefixes

    @property
    def slice(self) -> dict[str, Any]:
        """Settings that rollouts depend on; files and verdicts are inputs of theirs, by their hashes."""
        return {"prefix_share": [self.shortest, self.longest]}

    def reads(self, run: "Run", number: int) -> "tuple[Path, ...]":
        """Return the files, and the verdicts of earlier rounds, which say what is unsolved.

        Raises:
            DataError: an earlier round is not judged.
        """
        from oapl_extras.guidance.unsolved import verdicts_before

        return (*self.files, *(part for parts in verdicts_before(run, number) for part in parts))

    def check(self, key: str, own: "Experiment") -> None:
        """Refuse a round whose settings or machines cannot do with stored beginnings.

        Raises:
            ValueError: says why.
        """
        # a demonstration that is correct would make a problem pass for one that the policy solves
        beside = any(isinstance(one.source, WithDemonstrations) for one in own.rounds)
        refuse(key, own, {"sampling.stop": bool(own.sampling.stop), "rows of `with_demonstrations`": beside})

    def around(self, run: "Run", number: int, sampler: "Sampler") -> "Sampler":
        """Return a sampler that has unsolved problems' answers begin with stored ones.

        Raises:
            DataError: a row of the files cannot be used (one line with its place).
        """
        from oapl_core.model_files.model_folder import load_tokenizer
        from oapl_core.progress import say
        from oapl_extras.guidance.demonstrated import demonstrated_answers
        from oapl_extras.guidance.prefixed import Prefixed
        from oapl_extras.guidance.unsolved import unsolved

        answers, hard = demonstrated_answers(run, number, self.files), unsolved(run, number)
        stored = {name: answers[name] for name in hard if name in answers}
        found = self.beginnings(stored, run.config.of_round(number).sampling.max_tokens, run.config.seed, number)
        say(f"round {number}: {len(hard):,} problems are unsolved, {len(found):,} of them have a stored answer")
        return Prefixed(sampler, found, load_tokenizer(run.base_model()))

    def beginnings(
        self, answers: "Mapping[str, Sequence[WorkedAnswer]]", most: int, seed: int, number: int
    ) -> "dict[str, Beginning]":
        """Draw for each problem one of its stored ``answers`` and the share of it that round ``number`` gives.

        A beginning has one token or more, never the answer's last one, and leaves one of ``most`` to be sampled. An
        answer that is too short for that gives none. Depends on nothing but the arguments and the settings.
        """
        from oapl_extras.guidance.prefixed import Beginning

        found = {}
        for name, stored in answers.items():
            draw = random.Random(derive_seed(seed, "prefix", number, name))
            chosen, share = draw.choice(stored), draw.uniform(self.shortest, self.longest)
            tokens = min(max(1, round(share * (len(chosen.ids) - 1))), len(chosen.ids) - 1, most - 1)
            if tokens > 0:
                found[name] = Beginning(chosen.ids[:tokens], chosen.file)
        return found
