"""A Report as one HTML page (page.html.jinja); pure. It needs nothing but the PNGs beside it, no network."""

from importlib.resources import files

from oapl_core.reports.blocks import Report, printable


def page(report: Report) -> str:
    """The page; every text is escaped, whatever a model wrote."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
        keep_trailing_newline=True,
    )
    source = files("oapl_core.reports").joinpath("page.html.jinja").read_text(encoding="utf-8")
    return environment.from_string(source).render(report=report)


def _printable(value: object) -> object:
    return printable(value) if type(value) is str else value
