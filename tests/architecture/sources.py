"""The files of the checkout that the architecture tests look at: what git tracks or would track."""

import ast
import gc
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("oapl_extras", "deployments", "flows", "tasks", "oapl_core")


@cache
def files() -> tuple[Path, ...]:
    """Every tracked file, and every new one that git does not ignore, relative to the checkout."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(sorted(path for name in listed.split("\0") if name and (ROOT / (path := Path(name))).is_file()))


def python_files(*folders: str) -> tuple[Path, ...]:
    """The Python files under ``folders`` (top-level names)."""
    return tuple(path for path in files() if path.suffix == ".py" and path.parts[0] in folders)


@cache
def text(path: Path) -> str:
    """The file's text; empty for what is not UTF-8 (figures)."""
    try:
        return (ROOT / path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


@cache
def tree(path: Path) -> ast.Module:
    """The file's syntax tree."""
    gc.disable()  # among the nodes of a thousand trees is no garbage, and looking for some took two thirds of the time
    try:
        return ast.parse(text(path), filename=str(path))
    finally:
        gc.enable()


def imported(node: ast.AST) -> list[str]:
    """The top-level names of the packages that an import statement names; empty for any other node."""
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        return [node.module.split(".")[0]]
    return []


def is_type_checking(node: ast.AST) -> bool:
    """Whether ``node`` is an ``if TYPE_CHECKING:`` block."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
