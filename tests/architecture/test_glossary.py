"""docs/glossary.md: each word's place exists, the words that are not used are not, and no two classes share a name."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from oapl_core import tables
from tests.architecture.sources import PACKAGES, ROOT, files, python_files, text, tree

PAGE = Path("docs/glossary.md")
HEAD = "| word | what it is | where | not |"
NAMES = re.compile(r"\{[^{}]*\}")
NOT_OURS = {
    Path("docs/log.md"): "",  # a log is not rewritten
    Path("oapl_extras/servers/server.py"): "completions",  # in an address of vLLM's
    Path("oapl_extras/exchange/formats.py"): "completion|episode",  # columns of TRL's and records of prime-rl's
    Path("docs/data.md"): "completion",
    Path("oapl_extras/judge/rubrics.py"): "completion|trajectory",  # arguments of functions of verifiers
    Path("docs/rewards.md"): "completion|rubric",
    Path("oapl_extras/harnesses/lm_eval.py"): "completions",  # in an address of vLLM's
    Path("oapl_extras/judge/language_judge.py"): "completions",  # in an address of the protocol
    PAGE: "",  # names what it forbids
}
"""Files in which a forbidden word may stand, and which words (a regular expression; empty: any)."""


def rows() -> list[list[str]]:
    """Word, meaning, places and forbidden words of each row."""
    lines = [line for line in text(PAGE).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line != HEAD]


ROWS = rows()
FORBIDDEN = {word: row[0] for row in ROWS for word in row[3].split(", ") if word}


def test_every_row_is_whole_and_every_word_has_one_meaning() -> None:
    assert len(ROWS) > 50
    assert not [row for row in ROWS if len(row) != 4 or not all(row[:3])]
    words = [word for row in ROWS for word in row[0].split(", ")]
    assert len(words) == len(set(words))
    assert not set(words) & FORBIDDEN.keys()


def exists(place: str) -> bool:
    """Whether a file, ``file: Name``, ``file: Class.member`` or ``TABLE.column`` is there."""
    if "/" not in place:
        table, column = place.split(".")
        return column in [name for name, _ in getattr(tables, table)]
    path, _, name = place.partition(": ")
    return (ROOT / path).is_file() and (not name or name in names(tree(Path(path))))


def names(module: ast.Module) -> set[str]:
    """Everything that a module defines at its top, and members of its classes as ``Class.member``."""
    found = set(defined(module.body))
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{member}" for member in defined(node.body)}
    return found


def defined(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))


def test_each_word_is_where_the_page_says() -> None:
    places = {row[0]: re.findall(r"`([^`]+)`", row[2]) for row in ROWS}
    assert not [word for word, found in places.items() if not found]
    assert not [(word, place) for word, found in places.items() for place in found if not exists(place)]


@cache
def prose(path: Path) -> str:
    """What a person reads in a file: of Python the comments and strings, lines joined so that phrases are found."""
    if path.suffix != ".py":
        return " ".join(text(path).split())
    tokens = tokenize.generate_tokens(io.StringIO(text(path)).readline)
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    # until Python 3.12 an f-string is one token, with the names of what it shows in braces
    shown = (NAMES.sub("", t.string) if t.string.startswith("f") else t.string for t in tokens if t.type in kinds)
    return " ".join(" ".join(shown).replace("# ", "").split())


def readable() -> list[Path]:
    pages = [path for path in files() if path.suffix in {".md", ".toml", ".yaml", ".jinja", ".cff"}]
    pages = [path for path in pages if path.parts[0] in (*PACKAGES, "docs") or len(path.parts) == 1]
    return [*python_files(*PACKAGES), *pages, Path("data/README.md")]


def test_words_that_are_not_used_are_nowhere() -> None:
    allowed = {str(path): re.compile(words, re.IGNORECASE) for path, words in NOT_OURS.items()}
    words = "|".join(re.escape(word) for word in sorted(FORBIDDEN, key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w-])({words})s?(?![\w-])", re.IGNORECASE)
    found = []
    for path in readable():
        used = {match.group(): match.group(1) for match in pattern.finditer(prose(path))}
        mine = allowed.get(str(path))
        found += [(str(path), use, of) for use, of in used.items() if not (mine and mine.match(use))]
    assert not found, "the words are in docs/glossary.md"


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in python_files(*PACKAGES):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path}:{node.lineno}")
    assert not {name: where for name, where in places.items() if len(where) > 1}
