"""The notebooks of docs/notebooks: executed by `make check`, which builds the site; here, what stops that build."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # a kernel starts for each


def test_a_figure_is_on_the_page_in_words(tmp_path: Path) -> None:
    from docs.site.notebooks import executed, made_of

    source = tmp_path / "small.py"
    drawing = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nprint('drawn')\n"
    source.write_text(f'# %% [markdown]\n# # Small\n\n# %% alt="A rising line"\n{drawing}')
    made = made_of(executed(source, tmp_path), "small")
    page, picture = str(made["small.md"]), next(name for name in made if name.endswith(".png"))
    assert f"![A rising line]({picture})" in page
    assert "    drawn" in page
    assert bytes(made[picture])[1:4] == b"PNG"  # type: ignore[arg-type]
    assert '"alt": "A rising line"' in str(made["small.ipynb"])


def test_a_cell_that_raises_stops_the_build(tmp_path: Path) -> None:
    from nbclient.exceptions import CellExecutionError

    from docs.site.notebooks import executed

    source = tmp_path / "broken.py"
    source.write_text("# %%\nassert 1 == 2, 'the figure would be wrong'\n")
    with pytest.raises(CellExecutionError, match="the figure would be wrong"):
        executed(source, tmp_path)
