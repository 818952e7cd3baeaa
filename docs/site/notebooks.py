"""Executes the notebooks of docs/notebooks and makes pages of them, outputs included: a hook of MkDocs.

They are kept as plain Python (jupytext's percent format), so that they are read, checked and compared as code. A cell
that raises stops the build.
"""

import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import jupytext
import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbclient import NotebookClient
from nbconvert import MarkdownExporter
from traitlets.config import Config

PICTURE = re.compile(r"!\[png\]\(output_(\d+)_")
END = """
[The notebook with its outputs]({name}.ipynb), for Jupyter; its source is `docs/notebooks/{name}.py`.
"""


def executed(path: Path, root: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of its cells, run in ``root``. Raises CellExecutionError if one fails."""
    notebook: nbformat.NotebookNode = jupytext.read(path)
    where = {"metadata": {"path": str(root)}}
    environment = os.environ | {"MPLBACKEND": "module://matplotlib_inline.backend_inline"}  # else figures are lost
    with TemporaryDirectory() as folder:
        # pipes instead of TCP: no port is opened, and the kernel does not warn of it
        pipes = Config(KernelManager={"transport": "ipc", "connection_file": f"{folder}/kernel.json"})
        client = NotebookClient(notebook, config=pipes, timeout=300, startup_timeout=300, resources=where)
        client.execute(env=environment)
    return notebook


def made_of(notebook: nbformat.NotebookNode, name: str) -> dict[str, str | bytes]:
    """The files of an executed notebook: its page, its pictures and itself."""
    text, resources = MarkdownExporter().from_notebook_node(notebook)
    # a cell says in its metadata what its figure shows, for those who cannot see it
    text = PICTURE.sub(lambda found: f"![{notebook.cells[int(found[1])].metadata['alt']}]({name}_{found[1]}_", text)
    pictures = {key.replace("output", name): content for key, content in resources["outputs"].items()}
    return {f"{name}.md": text + END.format(name=name), f"{name}.ipynb": nbformat.writes(notebook), **pictures}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page, its pictures and the executed notebook for each source."""
    docs = Path(config.docs_dir)
    for path in sorted(docs.glob("notebooks/*.py")):
        notebook = executed(path, docs.parent)
        for name, content in made_of(notebook, path.stem).items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files
