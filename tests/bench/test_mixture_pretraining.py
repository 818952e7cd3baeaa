"""A base model that is made in parts has the bits of one that the pipeline's stage makes at once."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bench.claims.mixture import pretrained, sets
from bench.claims.mixture.pieces import pack, unpack
from bench.claims.mixture.pretrained import Job, cool, make
from bench.claims.mixture.scales import CORES, FAMILIES
from oapl_core.pretraining.pretrain import build, encode, read_solved
from oapl_core.settings.pretrain import PretrainConfig


@pytest.fixture
def job(tmp_path: Path) -> Job:
    solutions = tmp_path / "solutions.jsonl"
    sets.write_lines(solutions, [row for family in FAMILIES for row in sets.piece(CORES, family, 0, 6)])
    shape = {"hidden_size": 16, "intermediate_size": 32, "layers": 1, "heads": 2, "max_positions": 512}
    config = PretrainConfig(solutions=solutions, vocabulary=300, epochs=2, batch_size=5, threads=1, **shape)
    return Job(config, 3, solutions, tmp_path / "models" / "abc")


def test_a_model_in_parts_is_the_stage_s(job: Job, tmp_path: Path) -> None:
    calls = 1
    while not make(job, minutes=0):  # each call makes one step
        calls += 1
        assert torch.load(job.kept / "state.pt", weights_only=True)["step"] == calls - 1
    assert calls == 8
    build(read_solved(job.solutions), job.config, job.seed, tmp_path / "whole")
    parts, whole = (load_file(folder / "model.safetensors") for folder in (job.folder, tmp_path / "whole"))
    assert parts.keys() == whole.keys()
    assert all(torch.equal(parts[name], whole[name]) for name in whole)
    for name in ("tokenizer.json", "config.json", "generation_config.json"):
        assert (job.folder / name).read_text() == (tmp_path / "whole" / name).read_text()
    lines = [json.loads(line) for line in (job.kept / "progress.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == lines[-1]["steps"] == 8
    before = job.folder.stat().st_mtime_ns
    assert make(job, minutes=0)
    assert job.folder.stat().st_mtime_ns == before


def test_a_model_made_in_16_bits_travels_without_a_loss(job: Job, tmp_path: Path) -> None:
    assert make(job, minutes=1, bfloat16=True)
    pack(job.folder, tmp_path / "pieces")
    again = load_file(unpack(tmp_path / "pieces" / "abc.json") / "model.safetensors")
    weights = load_file(job.folder / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert all(torch.equal(weights[name], again[name]) for name in weights)


def test_cooling_leaves_the_state_alone(job: Job, tmp_path: Path) -> None:
    make(job, minutes=0)
    before = (job.kept / "state.pt").read_bytes()
    folder = cool(job, tmp_path / "cooled", 3)
    assert (job.kept / "state.pt").read_bytes() == before
    cooled = load_file(folder / "model.safetensors")
    state = torch.load(job.kept / "state.pt", weights_only=True)["model"]
    assert folder.name == "abc-1+3"
    assert not all(torch.equal(cooled[name], state[name]) for name in cooled)
    assert not job.folder.exists()


def test_ids_are_the_stage_s(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    make(job, minutes=0)
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(job.kept / "tokenizer")
    solved = read_solved(job.solutions)
    made = pretrained.encoded(solved, tokenizer)
    assert made == [(one.prompt_ids, one.answer_ids) for one in encode(solved, tokenizer)]
    tokenizer.chat_template = tokenizer.chat_template.replace("message['content']", "message['content'] | trim + ' '")
    with pytest.raises(AssertionError):
        pretrained.encoded([solved[0].model_copy(update={"statement": " a "})], tokenizer)
