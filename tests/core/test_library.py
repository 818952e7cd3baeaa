"""docs/library.md: its examples run, and its list is the frozen interface of ``import oapl_core``.

After a change that is meant, ``python -m tests.core.test_library`` writes the list anew.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oapl_core
from oapl_core import Method
from oapl_core.settings_group import Settings
from tests.synthetic_run import write_synthetic_run

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "library.md"
BLOCK = re.compile(r"(<!-- needs [^\n]* -->\n)?```(python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

KINDS = ("property", "cached_property", "classmethod", "staticmethod")


def blocks(kind: str) -> list[tuple[bool, str]]:
    """The page's blocks of code: whether it needs more than a test has, and its text."""
    return [(bool(needs), code) for needs, name, code in BLOCK.findall(PAGE.read_text("utf-8")) if name == kind]


def interface() -> str:
    """Every public name with its signature, a line each, as the source writes it: the same for every Python."""
    return "".join(f"{line}\n" for name in oapl_core.__all__ for line in lines(name, getattr(oapl_core, name)))


def lines(name: str, value: Any) -> Iterator[str]:
    if inspect.isfunction(value):
        yield signature(parsed(value))
    elif not inspect.isclass(value):
        yield name  # an annotation
    elif issubclass(value, Settings) and not issubclass(value, Method):
        yield f"{name}(**settings)"
    else:
        bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
        yield f"{name}({bases})" if bases else name
        yield from (f"    {line}" for node in parsed(value).body for line in member(node))


def parsed(value: Any) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]


def signature(node: ast.FunctionDef) -> str:
    return f"{node.name}({ast.unparse(node.args)}) -> {ast.unparse(node.returns)}" if node.returns else node.name


def member(node: ast.stmt) -> Iterator[str]:
    """The line of a public method, property, field or constant of a class."""
    if isinstance(node, ast.FunctionDef) and (node.name == "__init__" or not node.name.startswith("_")):
        kinds = [ast.unparse(decorator) for decorator in node.decorator_list]
        shown = [f"@{kind} " for kind in kinds if kind in KINDS]
        yield "".join(shown) + signature(node)
    elif isinstance(node, ast.Assign | ast.AnnAssign) and not ast.unparse(node).startswith("_"):
        yield ast.unparse(node)


def test_the_page_lists_every_name_with_its_signature() -> None:
    assert blocks("text")[-1][1] == interface()


def test_a_changed_signature_would_be_seen() -> None:
    assert "load_experiment(path: Path, overrides: Iterable[str]=()) -> Experiment\n" in interface()
    assert "    seed: int\n" in interface(), "fields of a dataclass"
    assert "    @classmethod open(cls, root: Path) -> Self\n" in interface()


@pytest.mark.parametrize("name", oapl_core.__all__)
def test_every_name_is_used_on_the_page(name: str) -> None:
    assert re.search(rf"\b{name}\b", PAGE.read_text("utf-8").partition("## The frozen names")[0])


def test_every_name_is_where_type_checkers_look_for_it() -> None:
    block = next(node for node in ast.parse(inspect.getsource(oapl_core)).body if isinstance(node, ast.If))
    homes = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert homes == oapl_core._HOME_OF
    assert sorted(homes) == sorted(oapl_core.__all__)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Verifyer'"):
        _ = oapl_core.Verifyer


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("data/demo", "deployments"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(ROOT / name)
    run = write_synthetic_run(tmp_path / "data" / "runs")
    run.root.rename(run.root.with_name("demo-seed0"))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    ran = 0
    for needs_more, code in blocks("python"):
        compiled = compile(code, str(PAGE), "exec", dont_inherit=True)
        if not needs_more:  # what an engine is needed for, examples/one_round.py does with one
            exec(compiled, names)
            ran += 1
    assert ran == len(blocks("python")) - 1


if __name__ == "__main__":
    text = PAGE.read_text("utf-8")
    PAGE.write_text(text.replace("```text\n" + blocks("text")[-1][1], "```text\n" + interface()), "utf-8")
