"""Demonstrations in the place of sampled answers: read, encoded as answers of the model, and handed out in order.

Reads a round's files of demonstrations, problems.parquet, prompts.parquet and the base model's tokenizer. Writes
nothing: whoever asked the sampler writes rollouts (tables.ROLLOUTS).
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oapl_core.groups.trust import UNKNOWN
from oapl_core.problems.demonstrations import Demonstrations
from oapl_core.problems.prepare import statements
from oapl_core.problems.raw_rows import place, raw_rows
from oapl_core.progress import say
from oapl_core.rollouts.generate import read_prompts
from oapl_core.rollouts.requests import Request, SampledAnswer, Sampler
from oapl_core.run_folder.run import Run
from oapl_extras.guidance.around import Around

_OTHER_PROMPT = "asked otherwise than the run asks"
_UNNAMED = "without the `problem_id` of a training problem"


@dataclass(frozen=True)
class WorkedAnswer:
    """One demonstration of a problem."""

    ids: list[int]
    """Token ids, the end included."""
    text: str
    file: str
    """Name of the file that it was read from."""


class _Worked(Demonstrations):
    """Reads demonstrations of the run's own problems, by problem."""

    def of(self, files: Sequence[Path], prompts: Mapping[str, Sequence[int]]) -> dict[str, list[WorkedAnswer]]:
        """Return the answers of each problem in the order of the files; ``prompts`` are those of training problems."""
        found = dict[str, list[WorkedAnswer]]()
        for path in files:
            for number, row in raw_rows(path):
                self.rows_read += 1
                name = str(row.get("problem_id")) if isinstance(row, dict) else ""
                # also of a row that cannot be used: it is refused by its place
                for asked, solution in self._turns(row, place(path, number)):
                    if name not in prompts:
                        self.dropped[_UNNAMED] += 1
                    elif ids := self._ids(asked, solution):
                        if ids[0] == list(prompts[name]):
                            found.setdefault(name, []).append(WorkedAnswer(ids[1], solution, path.name))
                        else:
                            self.dropped[_OTHER_PROMPT] += 1
        return found


def demonstrated_answers(run: Run, number: int, files: Sequence[Path]) -> dict[str, list[WorkedAnswer]]:
    """Read the demonstrations of round ``number``, by problem, and say what is left out.

    Raises:
        DataError: a file or a row cannot be used (one line with its place).
    """
    longest = run.config.of_round(number).sampling.max_tokens
    worked = _Worked(run, statements(run.problems), longest)
    found = worked.of(files, read_prompts(run, "train"))
    dropped = ", ".join(f"{count:,} {why}" for why, count in worked.dropped.items()) or "none"
    answers = sum(map(len, found.values()))
    say(f"round {number}: {answers:,} demonstrations of {len(found):,} problems; dropped: {dropped}")
    return found


class Demonstrated(Around):
    """A Sampler that hands the last requests of each group's answers out of what was read, and the others on."""

    def __init__(self, sampler: Sampler, answers: Mapping[str, Sequence[WorkedAnswer]], own: int) -> None:
        """``own`` rows of each group are sampled; those behind them are the problem's ``answers``, where it has any."""
        super().__init__(sampler)
        self._answers, self._own = answers, own

    def sample(self, requests: Iterable[Request | None], with_logprobs: bool = True) -> Iterator[SampledAnswer]:
        """Yield each answer as soon as it is finished, demonstrations as soon as they are asked for."""
        given = deque[SampledAnswer]()

        def others() -> Iterator[Request | None]:
            for request in requests:
                if request and (worked := self._worked(request)):
                    given.append(_as_sampled(request, worked))
                else:
                    yield request

        for answer in self._sampler.sample(others(), with_logprobs):
            while given:
                yield given.popleft()
            yield answer
        # asked for last, or nothing else was
        yield from given

    def _worked(self, request: Request) -> WorkedAnswer | None:
        answers = self._answers.get(request.problem_id, ())
        # a rollout's key ends with the number of the sample
        behind = int(request.key.rpartition("/s")[2]) - self._own
        return answers[behind] if 0 <= behind < len(answers) else None


def _as_sampled(request: Request, worked: WorkedAnswer) -> SampledAnswer:
    nobody: dict[str, Any] = {"logprobs": None, "logprobs_mode": UNKNOWN, "seed": None, "sampled_at": None}
    return SampledAnswer(
        request,
        worked.ids,
        [0.0] * len(worked.ids),
        "stop",
        worked.text,
        row={**nobody, "engine": f"demonstration {worked.file}"},
        sampled=0,
    )
