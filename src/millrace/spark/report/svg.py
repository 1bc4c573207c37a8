"""SVG as text. Whatever comes from outside is escaped here, once."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


class Markup(str):
    """Text that is markup already. Everything else is escaped when it is put into an element."""

    __slots__ = ()


def text_of(value: object) -> str:
    """Control characters would end a document that is read as XML; a line break or a tab may stay."""
    if isinstance(value, Markup):
        return value
    plain = "".join(one if one.isprintable() or one in "\n\t " else "\N{REPLACEMENT CHARACTER}" for one in str(value))
    return escape(plain, quote=True)


def tag(name: str, /, *content: object, **attributes: object) -> Markup:
    """`tag("rect", x=1.25, class_="s1")`: numbers are rounded to what a screen can show, None leaves one out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if not content and name not in OPEN:
        return Markup(f"<{name}{written}/>" if name in CLOSED else f"<{name}{written}></{name}>")
    if name in OPEN:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(content)}</{name}>")


OPEN = frozenset({"meta", "br", "link", "col"})  # elements of HTML that have no end
CLOSED = frozenset({"rect", "path", "line", "circle"})


def join(parts: Iterable[object]) -> Markup:
    return Markup("".join(text_of(part) for part in parts))


def number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _value(value: object) -> str:
    return number(value) if isinstance(value, (int, float)) else text_of(value)
