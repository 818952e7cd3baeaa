"""Pages: Markdown written by templates, and HTML made of it. Whatever a model wrote has no meaning as markup. Pure.

A ``*.md.jinja`` escapes what it inserts by backslashes, a ``*.html.jinja`` as HTML. Both make control characters
visible. A page needs nothing but the PNGs beside it, no network.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from oapl_core.storable import printable

if TYPE_CHECKING:
    from jinja2 import Environment
    from markdown_it.token import Token
    from markupsafe import Markup

_MARKUP = re.compile(r"([\\`*_\[\]<>|#&])")


def render(template: str, values: Mapping[str, Any], package: str = "oapl_core.markdown") -> str:
    """Fill a template of ``package``, which may include ours."""
    return _environment(package, is_markdown=template.endswith(".md.jinja")).get_template(template).render(values)


@cache
def _environment(package: str, is_markdown: bool) -> "Environment":
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=ChoiceLoader([PackageLoader(one, "") for one in (package, "oapl_core.markdown")]),
        # texts of models are on the page
        autoescape=True,
        # a misspelt name in a template would otherwise be empty text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_plain if is_markdown else _printable,
        keep_trailing_newline=True,
    )
    environment.globals["fenced"] = fenced
    return environment


def _printable(value: object) -> object:
    return printable(value) if type(value) is str else value


def _plain(value: object) -> object:
    from markupsafe import Markup

    return Markup(plain(value)) if type(value) is str else value


def plain(text: str) -> str:
    """Put ``text`` on one line, without any meaning as Markdown."""
    return _MARKUP.sub(r"\\\1", " ".join(printable(text).split()))


def fenced(text: str) -> "Markup":
    """Put ``text`` in a fence longer than any run of backticks in it."""
    from markupsafe import Markup

    fence = "`" * max(3, 1 + max(map(len, re.findall(r"`+", text)), default=0))
    return Markup(f"{fence}text\n{printable(text)}\n{fence}")


def html(markdown: str) -> str:
    """Make one HTML page of Markdown: links to its sections, tables that scroll by themselves, figures to enlarge."""
    from markdown_it import MarkdownIt
    from markupsafe import Markup

    # html: tags in the text are text
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.add_render_rule("table_open", _table_open)
    parser.add_render_rule("table_close", lambda *_: "</table>\n</div>\n")
    parser.add_render_rule("image", _image)
    tokens = parser.parse(markdown)
    titles, heading = list[tuple[str, str]](), ""
    for token, inner in pairwise(tokens):
        if token.type == "heading_open":
            heading = _words(inner)
            anchor = "-".join(re.findall(r"\w+", heading.lower()))
            if token.tag == "h2":
                token.attrSet("id", anchor)
                titles.append((anchor, heading))
        elif token.type == "table_open":
            token.meta["title"] = heading
        elif token.type == "th_open":
            token.attrSet("scope", "col")
    body = Markup(parser.renderer.render(tokens, parser.options, {}))
    return render("page.html.jinja", {"title": _words(tokens[1]), "sections": titles, "body": body})


def _words(token: "Token") -> str:
    return "".join(child.content for child in token.children or ())


def _table_open(_: object, tokens: "Sequence[Token]", index: int, *__: object) -> str:
    from markupsafe import escape

    name = escape(tokens[index].meta["title"])
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{name}">\n<table>\n'


def _image(_: object, tokens: "Sequence[Token]", index: int, *__: object) -> str:
    from markupsafe import escape

    source, alt = escape(tokens[index].attrs["src"]), escape(_words(tokens[index]))
    return f'<a href="{source}"><img src="{source}" alt="{alt}"></a>'
