"""The problems of an evaluation folder and their prompts.

Reads a published set or a problem set of ours, and the models' tokenizers; writes problems.parquet and, for each
tokenizer, prompts_<tokenizer>.parquet. Every hash that says whether another evaluation asks the same is made here.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from oapl_core.errors import ConfigError, DataError
from oapl_core.evaluation.answering import Questions
from oapl_core.evaluation.measurement import Measurement
from oapl_core.importing.curation import Tally
from oapl_core.importing.import_set import Choice, import_set, window
from oapl_core.importing.sources import fetch, local_files, released_files, source
from oapl_core.model_folder import digest, tokenizer_files
from oapl_core.problems.prepare import load_encoder
from oapl_core.problems.problem_set import SPLITS, read_problem_set
from oapl_core.problems.prompts import Style, messages
from oapl_core.problems.raw_rows import raw_rows
from oapl_core.problems.storing import write_tables
from oapl_core.progress import say
from oapl_core.settings.measurement import SetConfig
from oapl_core.tables import PROBLEMS, PROMPTS, open_table, read_table, write_table
from oapl_core.verdicts.extraction import opens_thinking

_ASKED = ("problem_id", "kind", "statement", "starter_code", "entry_point", "answer", "checker")
"""With the tests, what decides about prompts and verdicts."""
_HASH_DIGITS = 16


def take_problems(folder: Measurement) -> None:
    """Write problems.parquet, unless it is there and made from the same files.

    Raises:
        ConfigError: there is no such set, or its options cannot be used.
        DataError: the files cannot be read.
    """
    wanted = folder.config.problems
    settings = wanted.model_dump(mode="json")
    recorded = folder.ledger.artifacts().get(folder.name(folder.problems))
    if recorded and wanted.path is None and folder.is_done(folder.problems, recorded.inputs, settings):
        return  # from the hub, at one commit
    files = _files(wanted)
    inputs = folder.inputs(files)
    if folder.is_done(folder.problems, inputs, settings):
        return
    with folder.writing(folder.problems, inputs, settings) as draft:
        if wanted.name is None:
            problems = read_problem_set(files[0], _split(wanted), only=wanted.split is not None)
            draft.rows = write_tables(draft.path, islice(problems, wanted.limit))
            details: dict[str, Any] = {"set": files[0].name, "dropped": {}}
        else:
            draft.rows, details = _import(wanted, files, draft.path)
        draft.details = {**details, "split": _split(wanted), "content_sha256": content_hash(draft.path)}
    say(f"{draft.rows} problems")


def _files(wanted: SetConfig) -> list[Path]:
    if wanted.name is None:
        assert wanted.path is not None
        if not wanted.path.is_file():
            raise DataError(f"{wanted.path}: no such problem set")
        return [wanted.path]
    found = source(wanted.name)
    patterns, _ = released_files(found, wanted.release)
    return local_files(wanted.path or fetch(found, patterns, wanted.revision), patterns)


def _split(wanted: SetConfig) -> str:
    if wanted.split:
        return wanted.split
    if wanted.name is not None:
        return source(wanted.name).split
    assert wanted.path is not None
    first = next((row.get("split") for _, row in raw_rows(wanted.path) if isinstance(row, dict)), None)
    return first if first in SPLITS else "heldout"


def _import(wanted: SetConfig, files: list[Path], draft: Path) -> tuple[int, dict[str, Any]]:
    """Import a published set as it was published; its record of origin goes into the ledger."""
    assert wanted.name is not None
    found = source(wanted.name)
    choice = Choice(_split(wanted), window(wanted.window), wanted.faulty, distinct=False, limit=wanted.limit)
    tally: Tally = import_set(found, files, draft, choice, tell=say)
    draft.with_name(f"{draft.name}.origin.json").unlink(missing_ok=True)
    details = {
        "set": found.name,
        "hub": found.hub,
        "revision": None if wanted.path else wanted.revision or found.revision,
        "licence": found.licence,
        "choice": asdict(choice),
        "read": tally.read,
        "dropped": dict(tally.dropped),
        "noted": dict(tally.noted),
    }
    return tally.kept, details


def content_hash(problems: Path, split: str | None = None) -> str:
    """SHA-256 of what a problem set (or a split of it) asks and tests, in its order; not of how it is stored."""
    digest = hashlib.sha256()
    with open_table(problems, PROBLEMS) as file:
        for group in range(file.num_row_groups):
            for row in file.read_row_group(group, columns=[*_ASKED, "split", "tests"]).to_pylist():
                if split not in (None, row["split"]):
                    continue
                digest.update(json.dumps([row[name] for name in _ASKED]).encode())
                for test in row["tests"]:
                    for text in (test["input"], test["output"]):
                        digest.update(f"{len(text)}:".encode() + text.encode())
    return digest.hexdigest()


def tokenizer_hash(model: Path) -> str:
    """Identity of a model's tokenizer and chat template, 16 hex digits."""
    return digest(tokenizer_files(model))[:_HASH_DIGITS]


def chat_template_hash(model: Path) -> str | None:
    """Identity of the chat template alone; None without one."""
    alone, among = model / "chat_template.jinja", model / "tokenizer_config.json"
    template = alone.read_text() if alone.is_file() else None
    if template is None and among.is_file():
        template = json.loads(among.read_text()).get("chat_template")
    return None if template is None else hashlib.sha256(str(template).encode()).hexdigest()[:_HASH_DIGITS]


def style_hash(style: Style) -> str:
    """Identity of a prompt style: of its words around one problem of each kind."""
    probe: dict[str, Any] = {"problem_id": "p", "statement": "S", "starter_code": None, "entry_point": "f"}
    kinds: list[Mapping[str, Any]] = [
        {"kind": "stdin"},
        {"kind": "function"},
        {"kind": "function", "starter_code": "C"},
        {"kind": "assert"},
        {"kind": "math"},
        {"kind": "math", "platform": "aime"},
    ]
    asked = []
    for kind in kinds:
        try:
            asked.append(messages({**probe, **kind}, style))
        except ConfigError:
            asked.append([])
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:_HASH_DIGITS]


def questions(folder: Measurement, model: Path) -> Questions:
    """The problems as this model is asked them; writes its tokenizer's prompts unless they are there.

    Raises:
        DataError: the model has no tokenizer or chat template, or every prompt is too long.
    """
    config = folder.config
    path = folder.prompts(tokenizer_hash(model))
    settings = config.model_dump(mode="json", include={"prompt_style", "thinking", "max_prompt_tokens"})
    inputs = folder.inputs([folder.problems])
    if not folder.is_done(path, inputs, settings):
        encode = load_encoder(model, config.thinking)
        with folder.writing(path, inputs, settings) as draft:
            rows, digest, dropped = list[dict[str, Any]](), hashlib.sha256(), 0
            for problem in _statements(folder.problems):
                text, ids = encode(messages(problem, config.prompt_style))
                if len(ids) > config.max_prompt_tokens:
                    dropped += 1
                    continue
                digest.update(prompt_line(problem["problem_id"], text))
                name = {"problem_id": problem["problem_id"], "split": problem["split"]}
                rows.append({**name, "prompt": text, "prompt_ids": ids})
            if not rows:
                raise DataError(
                    f"every prompt is longer than {config.max_prompt_tokens} tokens; see --max-prompt-tokens"
                )
            draft.rows = write_table(draft.path, PROMPTS, rows)
            draft.details = {
                "sha256": digest.hexdigest(),
                "dropped": {"prompt too long": dropped},
                "style_sha256": style_hash(config.prompt_style),
                "chat_template_sha256": chat_template_hash(model),
            }
        say(f"{draft.rows} prompts, {dropped} dropped for more than {config.max_prompt_tokens} tokens")
    return _asked(folder, path)


def prompt_line(problem_id: str, text: str) -> bytes:
    """What a prompt adds to the hash of all."""
    return json.dumps([problem_id, text]).encode()


def _asked(folder: Measurement, path: Path) -> Questions:
    config, rows = folder.config, read_table(path, PROMPTS).to_pylist()
    return Questions(
        rows[0]["split"],
        folder.problems,
        {row["problem_id"]: row["prompt_ids"] for row in rows},
        frozenset(row["problem_id"] for row in rows if opens_thinking(row["prompt"])),
        config.samples,
        config.seed,
        config.max_tokens,
        config.temperature,
        config.top_p,
    )


def _statements(path: Path) -> Iterator[Mapping[str, Any]]:
    columns = ["problem_id", "split", "kind", "statement", "starter_code", "entry_point", "platform"]
    yield from read_table(path, PROBLEMS, columns).to_pylist()
