"""A page of one round (round.html.jinja): some of its rollouts, each token shaded by its log-prob, with their verdicts.

One file that needs neither network nor scripts: answers are filtered by outcome with style rules alone. Its size is
bounded by ``report.page_mb``: long answers are cut in their middle, then problems are left out; the page says so.
Beside what models wrote it shows the first failing test of a training problem, as problems.parquet does.
"""

from typing import TYPE_CHECKING

from oapl_core.markdown import render
from oapl_core.reports.blocks import percent, shortened
from oapl_core.run_folder.run_record import RunRecord
from oapl_core.turns.shown import is_judged_by_environment, told
from oapl_extras.round_pages.pieces import SHADES, read_tokenizer
from oapl_extras.round_pages.rollout_sample import (
    RolloutSample,
    marks,
    outcome_of,
    sample_rollouts,
    shaded,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BYTES_PER_TOKEN = 75
"""Estimate of a shaded token; too low an estimate costs another rendering, not the bound."""
_FEWEST_TOKENS = 16
"""Shorter than this no answer is cut; problems are left out instead."""
_TEST_CHARACTERS = 400
_PROMPT_CHARACTERS = 4000


def round_page(record: RunRecord, number: int) -> str | None:
    """Make the page of round ``number``; None if there is nothing to show.

    Raises:
        DataError: a part cannot be read.
    """
    sample = sample_rollouts(record, number)
    if sample is None:
        return None
    tokenizer, limit = read_tokenizer(record.run.behavior(number)), record.run.config.report.page_mb * 1e6
    answers = sum(map(len, sample.rows_by_problem.values()))
    # a first guess; the loop below measures what it gave
    tokens = max(_FEWEST_TOKENS, int(limit / _BYTES_PER_TOKEN / answers))
    while True:
        html = _render(sample, tokenizer, tokens)
        size = len(html.encode())
        if size <= limit or (tokens <= _FEWEST_TOKENS and len(sample.rows_by_problem) == 1):
            return html
        if tokens > _FEWEST_TOKENS:
            # 5 % less than in proportion, and at least one token, so that the loop ends
            tokens = max(_FEWEST_TOKENS, min(tokens - 1, int(0.95 * tokens * limit / size)))
        else:
            sample = sample.first(len(sample.rows_by_problem) // 2)


def _render(sample: RolloutSample, tokenizer: "Tokenizer | None", tokens: int) -> str:
    classes = {outcome: f"o{index}" for index, outcome in enumerate(sample.outcomes)}
    return render(
        "round.html.jinja",
        {
            "sample": sample,
            "tokens": tokens,
            "longest": max(row["response_tokens"] for rows in sample.rows_by_problem.values() for row in rows),
            "classes": classes,
            "shades": SHADES,
            "has_tokenizer": tokenizer is not None,
            "shaded": lambda row: shaded(row, tokenizer, tokens) if tokenizer else None,
            "marks": lambda row: marks(row, sample.tests_run_in_order),
            "outcome_of": outcome_of,
            "is_compared": lambda row: row["kind"] == "math" and row["outcome"] and not is_judged_by_environment(row),
            "turns_of": told,
            "prompt": lambda text: shortened(text, _PROMPT_CHARACTERS),
            "excerpt": lambda text: shortened(text, _TEST_CHARACTERS),
            "plain_answer": lambda text: shortened(text, 4 * tokens),
            "percent": percent,
        },
        "oapl_extras.round_pages",
    )
