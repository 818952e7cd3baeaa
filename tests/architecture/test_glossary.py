"""docs/glossary.md: each word's place exists; other words for our things are not used; no two classes share a name."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from oapl_core import tables
from tests.architecture.sources import PACKAGES, ROOT, files, python_files, text, tree

PAGE = Path("docs/glossary.md")
HEAD = "| word | meaning | where | elsewhere called |"
NAMES = re.compile(r"\{[^{}]*\}")
NOT_OURS = {
    Path("docs/log.md"): "",  # a log is not rewritten
    Path("oapl_extras/servers/server.py"): "completions",  # in an address of vLLM's
    Path("oapl_extras/exchange/formats.py"): "completion|episode",  # columns of TRL's and records of prime-rl's
    Path("oapl_extras/exchange/chosen.py"): "completion",  # a column of TRL's
    Path("docs/extras/exchange.md"): "completion",
    Path("docs/data.md"): "completion",
    Path("deployments/jobset.yaml"): "completions",  # a key of Kubernetes
    Path("oapl_extras/judge/rubrics.py"): "completion|trajectory",  # arguments of functions of verifiers
    Path("docs/rewards.md"): "completion|rubric",
    Path("oapl_extras/harnesses/lm_eval.py"): "completions",  # in an address of vLLM's
    Path("oapl_extras/judge/language_judge.py"): "completions",  # in an address of the protocol
    PAGE: "",  # has the field's words beside ours
}
"""Files in which a forbidden word may stand, and which words (a regular expression; empty: any)."""


def rows() -> list[list[str]]:
    """Word, meaning, places and the field's words of each row."""
    lines = [line for line in text(PAGE).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line != HEAD]


OTHER_WORDS = {
    "problem": "exercise, puzzle",
    "kind": "problem type, task type",
    "problem set": "benchmark suite, eval set",
    "split": "test set, test split, dev set",
    "stop text": "stop string, stop sequence",
    "answer": "completion, generated text",
    "gold answer": "ground-truth answer, label answer",
    "response": "output tokens, completion tokens",
    "rollout": "episode",
    "trajectory": "multi-turn rollout",
    "environment": "gym world",
    "loss mask": "action mask, completion mask",
    "sampling": "rollout phase, generation phase, decoding phase",
    "engine": "inference server",
    "routes": "routing decisions",
    "verifier": "grader, reward model, scorer",
    "verification": "grading, graded",
    "verdict": "grade",
    "outcome": "failure mode, error class",
    "reward": "return value of the episode, payoff",
    "reward part": "reward component, reward term",
    "correct": "right answer, right one, correct solution rate",
    "judge": "LLM grader",
    "version": "verdict set",
    "sandbox": "container jail",
    "canary": "self-test, smoke test",
    "audit": "cross-check, double-check",
    "demonstration": "expert trajectory, SFT example",
    "warm start": "SFT phase, cold start",
    "group": "rollout batch, sample group",
    "objective": "loss function class, algorithm class",
    "value": "critic",
    "policy": "actor model",
    "behaviour policy": "behavior policy, sampling policy, old policy",
    "log-prob": "log-likelihood, log likelihood",
    "recorded log-probs": "old log-probs, old logprobs",
    "rescored log-probs": "recomputed log-probs",
    "pair": "preference pair, chosen and rejected",
    "start log-probs": "proximal log-probs, anchor log-probs",
    "reference": "ref model",
    "mismatch": "train-inference gap",
    "lag": "staleness",
    "replay": "replay buffer, experience replay",
    "retired": "mastered, solved problem",
    "shared prompt": "shared prefix, prefix sharing, prefix grouping",
    "optimiser step": "optimizer step, global step",
    "experiment": "hyperparameters, hyper-parameters",
    "settings": "config file",
    "run": "job folder",
    "run folder": "run directory, output directory, work directory",
    "round": "outer iteration, outer loop",
    "stage": "pipeline phase",
    "step": "sub-task",
    "verb module": "driver script, runner script",
    "part": "shard file, chunk file",
    "ledger": "journal, manifest",
    "checkpoint": "snapshot",
    "state": "training checkpoint",
    "policy hash": "model hash, weights hash, fingerprint",
    "continue, resume": "goes on, go on, going on, went on",
    "redo": "rerun flag",
    "fork": "branched run, cloned run",
    "delete": "let go, lets go",
    "missing": "lacks, lacking",
    "mirror": "back-up, replica folder",
    "hollow": "dummy model",
    "in parallel": "beside sampling, beside training, beside each other",
    "guard": "watchdog, supervisor daemon",
    "rehearsal": "smoke run, toy run",
    "evaluation": "benchmarking run",
    "evaluation folder": "results directory",
    "card": "scorecard, score card",
    "pass@k": "solve rate",
    "comparison": "ablation, sweep run",
    "arm": "variant run, treatment",
    "tracker": "experiment logger",
    "report": "dashboard",
}
"""Words that are not used, by the word that is."""
ROWS = rows()
FORBIDDEN = {word: ours for ours, words in OTHER_WORDS.items() for word in words.split(", ")}


def test_every_row_is_whole_and_every_word_has_one_meaning() -> None:
    assert 30 <= len(ROWS) <= 50, "the words of the method, not every word"
    assert not [row for row in ROWS if len(row) != 4 or not all(row)]
    words = [row[0] for row in ROWS]
    assert len(words) == len(set(words))
    assert not (set(words) | OTHER_WORDS.keys()) & FORBIDDEN.keys()


@pytest.mark.parametrize("word", ["LoRA", "SFT", "ground truth", "reward model", "multi-node", "system prompt"])
def test_who_knows_the_fields_word_finds_ours(word: str) -> None:
    assert [row[0] for row in ROWS if word in row[3].split(", ")], "the site's search looks for it on this page"


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
    assert not found, "the words that are used: OTHER_WORDS, docs/glossary.md"


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in python_files(*PACKAGES):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path}:{node.lineno}")
    assert not {name: where for name, where in places.items() if len(where) > 1}
