"""Text that a model, a problem set or another machine wrote, made safe to show in a terminal, a log or a page. Pure."""


def printable(text: str) -> str:
    r"""Return ``text`` with control characters and lone surrogates made visible as ``\x1b``; lines and tabs stay."""
    safe = text.encode("utf-8", "backslashreplace").decode()  # surrogates alone cannot be encoded
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in safe)


def one_line(text: str) -> str:
    """Make line ends visible too: a text of one line stays one line."""
    return printable(text).replace("\n", "\\n")
