"""Builds SVG and HTML as text. This module escapes all text that is not markup."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


class Markup(str):
    """Text that is already markup. All other text is escaped when it is put into an element."""

    __slots__ = ()


def text_of(value: object) -> str:
    """Return the value as escaped text. Control characters are invalid in XML and are replaced; line breaks and tabs
    stay.
    """
    if isinstance(value, Markup):
        return value
    plain = "".join(one if one.isprintable() or one in "\n\t " else "\N{REPLACEMENT CHARACTER}" for one in str(value))
    return escape(plain, quote=True)


def tag(name: str, /, *content: object, **attributes: object) -> Markup:
    """Return an element: `tag("rect", x=1.25, class_="s1")`. Numbers are rounded; attributes that are None are left
    out.
    """
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


OPEN = frozenset({"meta", "br", "link", "col"})  # HTML elements without an end tag
CLOSED = frozenset({"rect", "path", "line", "circle"})


def join(parts: Iterable[object]) -> Markup:
    return Markup("".join(text_of(part) for part in parts))


def number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _value(value: object) -> str:
    return number(value) if isinstance(value, (int, float)) else text_of(value)
