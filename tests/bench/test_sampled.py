"""Answers of a small model in one batch: those that its distribution gives, at each row's temperature and top-p."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.claims.many_arms import loaded
from bench.claims.sampled import Way, drawn, sampled
from tests.tiny_model import write_tiny_model

END = 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", sharpness=5.0)
    return loaded(folder, torch.device("cpu"))


@torch.no_grad()
def likeliest(model: Any, prompt: list[int], most: int) -> list[int]:
    """Greedy decoding without a cache or a batch."""
    ids = list(prompt)
    while len(ids) < len(prompt) + most:
        ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        if ids[-1] == END:
            break
    return ids[len(prompt) :]


def test_greedy_answers_are_those_of_a_loop_without_batch_or_cache(model: Any) -> None:
    prompts = [[7, 8, 9], [11], [5, 6, 7, 8, 9, 10]]
    ways = (Way("t1", 1.0, 1.0, 3), Way("greedy", 0.0, 1.0, 1))
    found = sampled(model, prompts, ways, 8, [END], seed=1)
    assert found.shape == (3, 4, 8)
    for prompt, answers in zip(prompts, found, strict=True):
        assert [int(token) for token in answers[-1] if token >= 0] == likeliest(model, prompt, 8)


def test_an_answer_ends_at_its_end_token_and_others_are_still_drawn(model: Any) -> None:
    prompts = [[7 + i, 8] for i in range(12)]
    ends = sorted({int(token) for token in sampled(model, prompts, [Way("t1", 1.0, 1.0, 8)], 6, [], 1)[:, :, 1].flat})
    tokens = sampled(model, prompts, [Way("t1", 1.0, 1.0, 8)], 6, ends[::2], seed=1)
    lengths = (tokens >= 0).sum(-1)
    assert len(set(lengths.flat)) > 2
    for row, length in zip(tokens.reshape(-1, 6), lengths.flat, strict=True):
        ended = np.isin(row[:length], ends[::2])
        assert not ended[:-1].any() and (ended[-1] or length == 6) and (row[length:] == -1).all()


def test_tokens_have_the_frequencies_of_the_distribution() -> None:
    logits = torch.tensor([0.5, 2.0, -1.0, 1.0])
    n = 20_000
    uniform = (torch.arange(n) + 0.5) / n
    for temperature, top_p in ((1.0, 1.0), (0.6, 0.95), (0.6, 0.5)):
        # the second of two beginnings; the first is another distribution
        rows, way = torch.stack([logits.flip(0), logits]), Way("any", temperature, top_p, n)
        token = drawn(rows, torch.ones(n, dtype=torch.long), uniform, way)
        expected = torch.softmax(logits / temperature, -1)
        order = expected.argsort(descending=True)
        reached = expected[order].cumsum(0)
        kept = order[: int((reached < top_p).sum()) + 1] if top_p < 1 else order
        expected = torch.zeros(4).index_copy(0, kept, expected[kept])
        found = torch.bincount(token, minlength=4) / n
        torch.testing.assert_close(found, expected / expected.sum(), rtol=0, atol=2e-4)


def test_the_same_seed_draws_the_same_answers_in_other_batches(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts, ways = [[7 + i, 8, 9] for i in range(5)], (Way("t06", 0.6, 0.95, 4),)
    whole = sampled(model, prompts, ways, 6, [END], seed=3)
    monkeypatch.setattr("bench.claims.sampled.MOST_ROWS", 8)
    np.testing.assert_array_equal(sampled(model, prompts, ways, 6, [END], seed=3), whole)
    assert (sampled(model, prompts, ways, 6, [END], seed=4) != whole).any()
