"""The problems of an evaluation folder and their prompts.

Reads a published set or a problem set of ours, and the models' tokenizers; writes problems.parquet and, for each
tokenizer, prompts_<tokenizer>.parquet. Every hash that says whether another evaluation asks the same is made here.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

from oapl_core.errors import ConfigError, DataError
from oapl_core.evaluation.folder import EvaluationFolder
from oapl_core.evaluation.questions import Questions
from oapl_core.model_files.model_folder import digest, tokenizer_files
from oapl_core.problems.encoding import load_encoder, tool_schemas
from oapl_core.problems.prepare import ASKED, prompts
from oapl_core.problems.problem_set import SPLITS, read_problem_set
from oapl_core.problems.prompts import conversation
from oapl_core.problems.published import published_sets
from oapl_core.problems.raw_rows import raw_rows
from oapl_core.problems.storing import write_tables
from oapl_core.progress import say
from oapl_core.settings.evaluation_folder import SetConfig
from oapl_core.settings.problems import PromptConfig
from oapl_core.tables import PROBLEMS, PROMPTS, open_table, read_table, write_table

_ASKED = ("problem_id", "kind", "statement", "starter_code", "entry_point", "answer", "checker")
"""Columns that decide, with the tests, about prompts and verdicts."""
_IF_GIVEN = ("language", "messages")
"""Columns that decide about them, too, and came later: a set without them has the hash that it had."""
_HASH_DIGITS = 16
TOO_LONG = "prompt too long"


def take_problems(folder: EvaluationFolder) -> None:
    """Write problems.parquet, unless it is there and made from the same files.

    Raises:
        ConfigError: there is no such set, or its options cannot be used.
        DataError: the files cannot be read.
    """
    wanted = folder.config.problems
    settings = wanted.model_dump(mode="json")
    recorded = folder.ledger.artifacts().get(folder.name(folder.problems))
    if recorded and wanted.path is None and folder.is_done(folder.problems, recorded.inputs, settings):
        return  # from the hub, where one commit has one content: asking it again needs a network
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
            draft.rows, details = published_sets().write(wanted, files, _split(wanted), draft.path)
        draft.details = {**details, "split": _split(wanted), "content_sha256": content_hash(draft.path)}
    say(f"{draft.rows} problems")


def _files(wanted: SetConfig) -> list[Path]:
    if wanted.name is None:
        assert wanted.path is not None
        if not wanted.path.is_file():
            raise DataError(f"{wanted.path}: no such problem set")
        return [wanted.path]
    return published_sets().files(wanted)


def _split(wanted: SetConfig) -> str:
    if wanted.split:
        return wanted.split
    if wanted.name is not None:
        return published_sets().split(wanted.name)
    assert wanted.path is not None
    first = next((row.get("split") for _, row in raw_rows(wanted.path) if isinstance(row, dict)), None)
    return first if first in SPLITS else "heldout"


def content_hash(problems: Path, split: str | None = None) -> str:
    """Hash (SHA-256) the questions and tests of a problem set (or a split), in its order; not of how it is stored."""
    digest = hashlib.sha256()
    with open_table(problems, PROBLEMS) as file:
        names = [n for n in (*_ASKED, *_IF_GIVEN, "split", "tests", "info") if n in file.schema_arrow.names]
        for group in range(file.num_row_groups):
            for row in file.read_row_group(group, columns=names).to_pylist():
                if split not in (None, row["split"]):
                    continue
                given = [row[name] for name in _IF_GIVEN if row.get(name)]
                given += [row["info"]] if row["kind"] in ("text", "open") and row.get("info") else []
                digest.update(json.dumps([row[name] for name in _ASKED] + given).encode())
                for test in row["tests"]:
                    for text in (test["input"], test["output"]):  # its length first: "a", "bc" is not "ab", "c"
                        digest.update(f"{len(text)}:".encode() + text.encode())
    return digest.hexdigest()


def tokenizer_hash(model: Path) -> str:
    """Hash a model's tokenizer and chat template, 16 hex digits."""
    # the bytes of the files, so that it is known without loading a tokenizer
    return digest(tokenizer_files(model))[:_HASH_DIGITS]


def chat_template_hash(model: Path) -> str | None:
    """Hash the chat template alone; None without one."""
    alone, among = model / "chat_template.jinja", model / "tokenizer_config.json"
    template = alone.read_text() if alone.is_file() else None
    if template is None and among.is_file():
        template = json.loads(among.read_text()).get("chat_template")
    return None if template is None else hashlib.sha256(str(template).encode()).hexdigest()[:_HASH_DIGITS]


def style_hash(words: PromptConfig) -> str:
    """Hash a prompt style or template: its words around one problem of each kind."""
    probe: dict[str, Any] = {"problem_id": "p", "statement": "S", "starter_code": None, "entry_point": "f"}
    code = [{"kind": "stdin"}, {"kind": "function"}, {"kind": "function", "starter_code": "C"}, {"kind": "assert"}]
    maths = [{"kind": "math"}, {"kind": "math", "platform": "aime"}]
    asked = []
    for kind in code + maths:
        try:
            asked.append(conversation({**probe, **kind}, words))
        except ConfigError:  # a style that has no words for this kind
            asked.append([])
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:_HASH_DIGITS]


def questions(folder: EvaluationFolder, model: Path) -> Questions:
    """Return the problems as this model is asked them; write its tokenizer's prompts unless they are there.

    Raises:
        DataError: the model has no tokenizer or chat template, or every prompt is too long.
    """
    config = folder.config
    path = prompts_of(folder, model)
    tools = tool_schemas(config.environment)
    settings = config.prompting | ({"tools": tools} if config.environment else {})
    inputs = folder.inputs([folder.problems])
    if not folder.is_done(path, inputs, settings):
        encode = load_encoder(model, config.thinking, config.chat, tools)
        say(encode.form)
        with folder.writing(path, inputs, settings) as draft:
            dropped = Counter[str]()
            problems = read_table(folder.problems, PROBLEMS, ASKED).to_pylist()
            draft.rows = write_table(draft.path, PROMPTS, prompts(problems, encode, config, dropped))
            if not draft.rows:
                raise DataError(f"every prompt is longer than {config.max_prompt_tokens} tokens; see max_prompt_tokens")
            draft.details = {"dropped": {TOO_LONG: dropped.total()}}
        say(f"{draft.rows} prompts, {dropped.total()} dropped for more than {config.max_prompt_tokens} tokens")
    return Questions.read(folder.problems, path, config)


def prompts_of(folder: EvaluationFolder, model: Path) -> Path:
    """Return the file of the prompts that this model is given."""
    return folder.prompts(tokenizer_hash(model))


@dataclass(frozen=True)
class Prompted:
    """Identity of the prompts that a model was given."""

    rows: int
    sha256: str
    """Hash of problem_id and text of each, in their order."""
    chat_template_sha256: str | None
    dropped: Mapping[str, int]
    """Counts of missing prompts, by reason."""

    @classmethod
    def read(cls, prompts: Path, split: str | None, model: Path, dropped: Mapping[str, int]) -> Self:
        """Read the prompts of the table ``prompts``, of one ``split`` if it has several."""
        only = ("split", [split]) if split else None
        rows = read_table(prompts, PROMPTS, ["problem_id", "split", "prompt"], only).to_pylist()
        digest = hashlib.sha256()
        for row in rows:
            digest.update(json.dumps([row["problem_id"], row["prompt"]]).encode())
        return cls(len(rows), digest.hexdigest(), chat_template_hash(model), dropped)
