"""Counts that the budgets bound: lines of the core path, places of a feature's words, settings, options, docstrings."""

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from tests.architecture.sources import PACKAGES, is_type_checking, python_files, text, tree

VERBS = (
    "deployments.cli deployments.commands.run flows.experiment oapl_core.pretraining.pretrain "
    "oapl_core.problems.prepare oapl_core.rollouts.generate oapl_core.verdicts.verify "
    "oapl_core.groups.build oapl_core.training.train "
    "oapl_core.evaluation.evaluate oapl_core.reports.write oapl_core.sandbox.fork_server"
).split()
"""Modules that `make demo` starts: the command, its flow, the verbs of the stages, the server that runs programs."""
FEATURES = {
    "turns and tools": (
        r"has_turns|turn_starts|TurnSampler|tool_calls|LOSS_MASK|TURNS",
        ("environments", "oapl_core/turns"),
    ),
    "routes of experts": (r"\broutes?\b|ROUTES", ("routes",)),
    "reward threshold": (r"right_from|with_threshold", ("verdicts", "settings/reward")),
    "languages of programs": (r"\blanguages?\b", ("languages",)),
    "mirror": (r"\bmirror", ("mirror", "oapl_extras/exchange", "oapl_extras/remote")),
    "demonstrations": (r"(?i)demonstrat", ("demonstrat",)),
    "imported rows": (r"\bmakes_rollouts\b|ImportConfig|import_source", ("oapl_extras/exchange", "settings/rows")),
    "fleet": (r"\bfleet\b|Fleet", ("fleet",)),
    "replay and difficulty": (r"\breplay|difficulty", ("replay", "difficulty")),
    "servers that sample": (
        r"SamplerConfig|ServerSampler|(config|experiment|self)\.sampler\b|\bhas_servers\b|oapl_extras\.servers",
        ("oapl_extras/servers", "settings/sampler"),
    ),
    "trackers": (r"\btrackers?\b|Tracker", ("trackers",)),
    "settings by round": (
        r"\b(OwnTables|rounds_in_words|has_a_loss)\b|\bone\.own\b",
        ("settings/rounds", "settings/experiment"),
    ),
    "stop rules": (
        r"\bStopConfig\b|\bStopped\b|oapl_extras\.stop",
        ("oapl_extras/stop", "operation/stop"),
    ),
    "evaluation during the run": (
        r"(?i)interim|\bevaluation\.(every_rounds|heldout_problems)\b|\b(before_the_end|at_the_end_alone)\b"
        r"|OF_ALL_ROUNDS",
        ("oapl_extras/interim", "settings/evaluation"),
    ),
    "words of others in an answer or a group": (
        r"with_demonstrations|with_prefixes|\bhas_beginning\b|(?i:luffy)|oapl_extras\.guidance",
        ("oapl_extras/guidance", "clipped/luffy"),
    ),
    "averaged and repeated updates": (
        r"slow_fast|SlowFast|ppo_ewma|PpoEwma|\bAverage\b|\bEntropies\b",
        ("training/updates", "options/slow_fast", "clipped/ppo_ewma"),
    ),
    "filters": (r"\bpass_rate\b|\b(own_)?filters\b", ("oapl_core/groups", "oapl_extras/filters")),
}
"""Words of a feature, and parts of the paths that are its own."""
OF_THE_STATEMENT = re.compile(r"(What|Of|As|Those|That)\b")
LONGEST_SENTENCE = 25
KINDS_OF_DIALECT = (
    "begins with What, Of, As, Those or That",
    "three words or fewer",
    "a sentence over 25 words",
    "no verb before a function, no noun before a property",
)
NOT_A_VERB = re.compile(r"(The|An?|Its|Whether|Where|How|Which|Every|All|Only|Not|Nothing|One|Same|What|Of|As|Those)\b")
NOT_A_NOUN = re.compile(r"(Where|How|Which|Only|Not|Nothing|Same|What|Of|As|Those|Returns?|Says?|Gives?|Computes?)\b")
"""First words of a docstring that surely are none; "Whether" begins a property that is true or false."""


def module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


@cache
def modules() -> dict[str, Path]:
    return {module_of(path): path for path in python_files(*PACKAGES)}


def closure(starts: list[str]) -> set[str]:
    """Every module of ours that the ``starts`` may import, at their top or in a function; types alone left out."""
    found: set[str] = set()
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        if name in found or name not in modules():
            continue
        found.add(name)
        parts = name.split(".")
        waiting += [".".join(parts[:n]) for n in range(1, len(parts))]
        waiting += imports(tree(modules()[name]))
    return found


def imports(node: ast.AST) -> Iterator[str]:
    """Names of modules below ``node``; of ``from a import b`` both ``a`` and ``a.b``."""
    if is_type_checking(node):
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imports(child)


def core_lines() -> int:
    """Lines of the modules that `make demo` may load."""
    return sum(len(text(modules()[name]).splitlines()) for name in closure(VERBS))


def elsewhere(words: str, own: tuple[str, ...]) -> list[str]:
    """Source files outside of a feature's own places that use its words in code (comments and docstrings apart)."""
    pattern, found = re.compile(words), []
    for path in python_files(*PACKAGES):
        is_own = any(part in str(path) for part in own)
        if not is_own and pattern.search(names_of(path)):
            found.append(str(path))
    return found


@cache
def names_of(path: Path) -> str:
    """The identifiers of a source file, once for all features."""
    return " ".join(identifiers(tree(path)))


def identifiers(module: ast.Module) -> Iterator[str]:
    """Names, attributes (also with what they are of), keywords and imported modules that a file's code has."""
    for node in ast.walk(module):
        match node:
            case ast.Attribute(value=ast.Name(id=of) | ast.Attribute(attr=of), attr=name):
                yield f"{of}.{name}"
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.alias(name=name):
                yield name
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name
            case ast.keyword(arg=str(name)):
                yield name
            case ast.ImportFrom(module=str(name)):
                yield name


def docstrings() -> Iterator[tuple[str, ast.AST, str]]:
    """Place, node and text of every docstring of source: of modules, classes, functions and fields."""
    for path in python_files(*PACKAGES):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
                if said := ast.get_docstring(node):
                    yield f"{path}:{getattr(node, 'lineno', 1)}", node, said
                for field, following in pairwise(node.body):
                    match field, following:
                        case ((ast.AnnAssign() | ast.Assign()), ast.Expr(value=ast.Constant(value=str(said)))):
                            yield f"{path}:{field.lineno}", field, said


def sentences(said: str) -> Iterator[str]:
    """Split a docstring's paragraphs at full stops; tables, which are indented, are left out."""
    for paragraph in inspect.cleandoc(said).split("\n\n"):
        if not paragraph.startswith("    "):
            yield from re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split()))


def dialect() -> dict[str, int]:
    """Docstrings that a reader reads twice, by what is wrong with them."""
    found = dict.fromkeys(KINDS_OF_DIALECT, 0)
    for _, node, said in docstrings():
        found["begins with What, Of, As, Those or That"] += bool(OF_THE_STATEMENT.match(said))
        is_short = len(said.split()) <= 3 and isinstance(node, ast.FunctionDef | ast.ClassDef)
        found["three words or fewer"] += is_short
        found["a sentence over 25 words"] += sum(len(one.split()) > LONGEST_SENTENCE for one in sentences(said))
        found["no verb before a function, no noun before a property"] += not begins_as_it_should(node, said)
    return found


def begins_as_it_should(node: ast.AST, said: str) -> bool:
    """Whether a function's docstring may begin with a verb and says more than three words, a property's with a noun."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return True
    if any(ast.unparse(one).rpartition(".")[2] in ("property", "cached_property") for one in node.decorator_list):
        return not NOT_A_NOUN.match(said)
    return not NOT_A_VERB.match(said) and len(next(sentences(said)).split()) > 3
