"""Are a run's rollouts of several turns sound (turns/), and would a chat template show the model what it saw?

Reads 1_rollouts and prompts.parquet, row group by row group, and the tokenizer; writes nothing.

What the model sampled is never rendered again, so no chat template can break a row that was sampled here. But a server
of the model behind an interface of messages renders every earlier turn at each request. Some templates render a turn
otherwise than it was sampled. Qwen3's leaves out reasoning before the last user's turn; Llama's and Gemma's cut white
space off. Such rows are named, with the first turn that would come out otherwise.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from oapl_core import tables
from oapl_core.errors import DataError
from oapl_core.model_files.chat import Refused, render
from oapl_core.model_files.model_folder import load_tokenizer
from oapl_core.run_folder.checking import Finding
from oapl_core.run_folder.run import Run, parts_of
from oapl_core.tables import LOSS_MASK, TURNS
from oapl_core.turns import has_turns
from oapl_core.turns.rows import fault

_COLUMNS = ("rollout_id", "problem_id", "response_ids", "logprobs")
_NEXT = "?"


@dataclass
class TurnCheck:
    """Findings about a run's trajectories."""

    rows: int = 0
    """Number of rows that were looked at."""
    unsound: list[Finding] = field(default_factory=list)
    reworded: list[Finding] = field(default_factory=list)
    """Rows that a chat template would render otherwise than the model saw them."""


def check_turns(run: Run) -> TurnCheck:
    """Look at every rollout of every round whose files have turns.

    Raises:
        DataError: a file cannot be read.
    """
    found, prompts, template = TurnCheck(), dict[str, list[int]](), None
    for number in range(len(run.config.rounds)):
        for part in parts_of(run.rollouts(number)):
            if not has_turns(part):
                continue
            if not prompts:
                prompts, template = _prompts(run), _template(run)
            for row in _rows(part):
                found.rows += 1
                wrong = fault(row, prompts.get(row["problem_id"], []))
                if wrong:
                    found.unsound.append(Finding(row["rollout_id"], wrong))
                elif template and (turn := template.first_reworded(row)) is not None:
                    found.reworded.append(Finding(row["rollout_id"], f"turn {turn}"))
    return found


def _prompts(run: Run) -> dict[str, list[int]]:
    table = tables.read_table(run.prompts, tables.PROMPTS, ["problem_id", "prompt_ids"])
    return dict(zip(table["problem_id"].to_pylist(), table["prompt_ids"].to_pylist(), strict=True))


def _rows(part: Any) -> Iterator[dict[str, Any]]:
    with tables.open_table(part, tables.ROLLOUTS) as file:
        for number in range(file.num_row_groups):
            # tokens of one row group at a time, however long the round's trajectories are
            yield from file.read_row_group(number, columns=[*_COLUMNS, *dict(TURNS)]).to_pylist()


def _template(run: Run) -> "Template | None":
    """Read the chat template of the run's model; None where prompts are plain text, or its tokenizer is gone."""
    try:
        tokenizer = load_tokenizer(run.base_model())
    except DataError:
        return None
    is_chat = bool(tokenizer.chat_template) and run.config.problems.chat is not False
    thinking = run.config.problems.thinking
    return Template(tokenizer, {} if thinking is None else {"enable_thinking": thinking}) if is_chat else None


class Template:
    """Rendering of a turn of the model by a chat template once another turn follows it."""

    def __init__(self, tokenizer: Any, options: Mapping[str, Any]) -> None:
        """``options``: what the template is given beside messages."""
        self._tokenizer, self._options = tokenizer, options
        self._has_tools = self._rendered("x", "tool") is not None

    def first_reworded(self, row: Mapping[str, Any]) -> int | None:
        """Find the first turn of a row of ROLLOUTS that would be rendered otherwise than it was sampled; None: none."""
        ids, starts, mask = row["response_ids"], row["turn_starts"] or [0], row[LOSS_MASK]
        calling = {call["turn"] for call in row["tool_calls"] or ()}
        # the last turn is followed by none: it is rendered for nobody
        for turn, (start, end) in enumerate(pairwise(starts)):
            sampled = [token for token, own in zip(ids[start:end], mask[start:end], strict=True) if own]
            if not self.keeps(sampled, turn in calling):
                return turn
        return None

    def keeps(self, sampled: Sequence[int], calls_tools: bool) -> bool:
        """Tell whether a turn's own tokens, with its end, are in what is rendered, followed by a tool's result or by
        a user's turn."""
        said = self._tokenizer.decode(sampled, clean_up_tokenization_spaces=False)
        content = said
        for token in self._tokenizer.convert_ids_to_tokens(sampled[-1:]):
            # the template writes the end of a turn itself
            content = said.removesuffix(token) if token in self._tokenizer.all_special_tokens else said
        shown = self._rendered(content, "tool" if calls_tools and self._has_tools else "user")
        return shown is not None and said in shown

    def _rendered(self, content: str, next_role: str) -> str | None:
        turns = [{"role": "user", "content": _NEXT}, {"role": "assistant", "content": content}]
        turns.append({"role": next_role, "content": _NEXT, "name": _NEXT})
        try:
            text = render(self._tokenizer, turns, self._options)
        except Refused:
            return None
        return text if text.count(_NEXT) > 1 else None  # some leave out roles that they do not know
