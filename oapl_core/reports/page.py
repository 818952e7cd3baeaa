"""A Report as one HTML page (page.html.jinja); pure. It needs nothing but the PNGs beside it, no network."""

from collections.abc import Mapping
from typing import Any

from oapl_core.reports.blocks import Report
from oapl_core.storable import printable


def page(report: Report) -> str:
    """Render the page; every text is escaped, whatever a model wrote."""
    return render("page.html.jinja", {"report": report})


def render(template: str, values: Mapping[str, Any], package: str = "oapl_core.reports") -> str:
    """Fill a template of ``package``, which may include ours; texts are escaped, their control characters visible."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=ChoiceLoader([PackageLoader(one, "") for one in (package, "oapl_core.reports")]),
        # texts of models are on the page
        autoescape=True,
        # a misspelt name in a template would otherwise be empty text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(values)


def _printable(value: object) -> object:
    return printable(value) if type(value) is str else value
