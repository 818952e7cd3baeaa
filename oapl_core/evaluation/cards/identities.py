"""Identities of what an evaluation asks: hashes that say whether another evaluation asks the same.

Reads tables.PROBLEMS, tables.PROMPTS and the files of a model's tokenizer; writes nothing.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from oapl_core.errors import ConfigError
from oapl_core.model_files.model_folder import digest, tokenizer_files
from oapl_core.problems.prompts import conversation
from oapl_core.settings.problems import PromptConfig
from oapl_core.tables import PROBLEMS, PROMPTS, open_table, read_table

_ASKED = ("problem_id", "kind", "statement", "starter_code", "entry_point", "answer", "checker")
"""Columns that decide, with the tests, about prompts and verdicts."""
_IF_GIVEN = ("language", "messages")
"""Columns that decide about them, too, and came later: a set without them has the hash that it had."""
_HASH_DIGITS = 16


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
