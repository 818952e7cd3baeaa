"""Demonstrations as prompts and answers, in the columns of a round's groups (tables.GROUPS).

Reads a round's files of demonstrations, and prompts.parquet. Each row is its own group, with reward 1 and no log-probs,
since nobody sampled it. A prompt is made as for sampling, and an answer ends with what ends one there. Each assistant
turn of a conversation is a row, whose prompt is all that precedes the turn. Chat templates show earlier turns otherwise
(without their thoughts) than they ask for one. What is too long to be sampled, or asks what is measured, is dropped and
counted, never cut.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from oapl_core import tables
from oapl_core.errors import DataError
from oapl_core.model_files.model_folder import limits, load_tokenizer
from oapl_core.problems.encoding import load_encoder, tool_schemas
from oapl_core.problems.prompts import conversation
from oapl_core.problems.raw_rows import place, raw_rows
from oapl_core.run_folder.run import Run
from oapl_core.settings.rows.demonstrations import DemonstrationsConfig

Turns = list[dict[str, str]]
_ROLES = ("system", "developer", "user", "assistant", "tool")
_SHAPES = "write `messages`, or a `solution` and the `problem_id` of a training problem or a `statement`"


class Demonstrations:
    """Makes the rows, and counts what is left out."""

    def __init__(self, run: Run, problems: Iterable[Mapping[str, Any]], longest: int) -> None:
        """``problems`` are those of every split, as prompts are made of them; ``longest`` bounds an answer's tokens."""
        self._stop = run.config.sampling.stop
        self._config, self._longest_answer, model = run.config.problems, longest, run.base_model()
        tools = tool_schemas(run.config.environment)
        self._encode = load_encoder(model, self._config.thinking, self._config.chat, tools)
        self._tokenizer, self._longest = load_tokenizer(model), limits(model)[0]
        self._problems = {problem["problem_id"]: problem for problem in problems}
        self._kinds = {problem["kind"] for problem in self._problems.values() if problem["split"] == "train"}
        asked = tables.read_table(run.prompts, tables.PROMPTS, ("split", "prompt_ids"), ("split", _MEASURED))
        self._measured = {hash(tuple(ids)) for ids in asked["prompt_ids"].to_pylist()}
        self.dropped = Counter[str]()
        self.rows_read = self.tokens = 0

    def rows(self, settings: DemonstrationsConfig) -> Iterator[dict[str, Any]]:
        """Yield rows of tables.GROUPS, so many of each file's rows as `limit` says.

        Raises:
            DataError: a row cannot be used (one line with its place).
        """
        group = 0
        for path in settings.demonstrations:
            used = 0
            for number, row in raw_rows(path):
                if used == settings.limit:
                    break
                self.rows_read += 1
                where, made = place(path, number), 0
                for turn, (asked, solution) in enumerate(self._turns(row, where)):
                    if ids := self._ids(asked, solution):
                        name = f"{path}:{number}/t{turn}"
                        yield self._row(name, str(row.get("problem_id") or name), group + made, *ids)
                        made += 1
                group, used = group + made, used + bool(made)

    def _row(self, name: str, problem: str, group: int, prompt_ids: list[int], answer_ids: list[int]) -> dict[str, Any]:
        self.tokens += len(answer_ids)
        return {
            "rollout_id": name,
            "problem_id": problem,
            "group": group,
            "policy_hash": "unknown",
            "prompt_ids": prompt_ids,
            "response_ids": answer_ids,
            "behavior_logprobs": None,
            "temperature": 1.0,
            "reward": 1.0,
            "correct": True,
        }

    def _turns(self, row: Any, where: str) -> list[tuple[Turns, str]]:
        """Return what is asked and what is answered, for each answer of a row."""
        if not isinstance(row, dict):
            raise DataError(f"{where}: is not a JSON object; {_SHAPES}")
        row = {key: value for key, value in row.items() if value is not None}
        if "messages" in row:
            turns = _checked(row["messages"], where)
            return [(turns[:i], turn["content"]) for i, turn in enumerate(turns) if turn["role"] == "assistant"]
        if not all(isinstance(row.get(key, ""), str) for key in ("problem_id", "statement", "kind")):
            raise DataError(f"{where}: `problem_id`, `statement` and `kind` must be texts")
        if not isinstance(row.get("solution"), str) or not row["solution"].strip() or not row.keys() & _ASKS:
            raise DataError(f"{where}: {_SHAPES}")
        problem = self._problems.get(row.get("problem_id")) or self._own(row, where)
        if problem is None or problem["split"] != "train":
            self.dropped["of no training problem of the run" if problem is None else _IS_MEASURED] += 1
            return []
        return [(conversation(problem, self._config), row["solution"])]

    def _own(self, row: Mapping[str, Any], where: str) -> dict[str, Any] | None:
        """Make a problem that is not one of the run's; None without a statement."""
        if "statement" not in row:
            return None
        if "kind" not in row and len(self._kinds) > 1:
            raise DataError(f"{where}: say the `kind` of the problem, as the run has {', '.join(sorted(self._kinds))}")
        rest = dict.fromkeys(("starter_code", "entry_point", "platform"))
        return {"kind": next(iter(self._kinds)), "problem_id": where, **rest, **row, "split": "train"}

    def _ids(self, asked: Turns, solution: str) -> tuple[list[int], list[int]] | None:
        """Token ids of prompt and answer; None if they are dropped."""
        text, prompt_ids = self._encode(asked)
        answer = self._encode.answer(text, solution, self._stop)
        both: list[int] = self._tokenizer(text + answer, add_special_tokens=False)["input_ids"]
        # Behind its prompt, since some tokenizers write another first token at the beginning of a text; but the
        # prompt's own tokens are those that sampling begins with.
        if both[: len(prompt_ids)] == prompt_ids:
            answer_ids = both[len(prompt_ids) :]
        else:
            answer_ids = self._tokenizer(answer, add_special_tokens=False)["input_ids"]
        wrong = self._wrong(prompt_ids, answer_ids)
        if wrong:
            self.dropped[wrong] += 1
            return None
        return prompt_ids, answer_ids

    def _wrong(self, prompt_ids: list[int], answer_ids: list[int]) -> str | None:
        if hash(tuple(prompt_ids)) in self._measured:
            return _IS_MEASURED
        if len(prompt_ids) > self._config.max_prompt_tokens:
            return "with a prompt longer than problems.max_prompt_tokens"
        if len(answer_ids) > self._longest_answer:
            return f"with an answer longer than {self._longest_answer} tokens"
        return "longer than the model's positions" if len(prompt_ids) + len(answer_ids) > self._longest else None


_ASKS = {"problem_id", "statement"}
_MEASURED = ("validation", "heldout")
_IS_MEASURED = "of a validation or held-out problem"


def _checked(turns: Any, where: str) -> Turns:
    """Check the turns of `messages`, and return each with its role and content."""
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise DataError(f"{where}: `messages` must be a list of objects with `role` and `content`")
    for number, turn in enumerate(turns):
        said = {key for key, value in turn.items() if value is not None}
        if said != {"role", "content"} or turn["role"] not in _ROLES or not isinstance(turn["content"], str):
            raise DataError(
                f"{where}: message {number} must have a `role` ({', '.join(_ROLES)}) and a text as `content`, and "
                "nothing else"
            )
        if turn["role"] == "assistant" and (number == 0 or not turn["content"].strip()):
            raise DataError(
                f"{where}: message {number} is an assistant turn that {'answers' * (number == 0) or 'says'} nothing"
            )
    if not any(turn["role"] == "assistant" for turn in turns):
        raise DataError(f"{where}: `messages` has no assistant turn, so there is nothing to train on")
    return [{"role": turn["role"], "content": turn["content"]} for turn in turns]
