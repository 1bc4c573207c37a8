"""Validation of paths that must be on the local file system.

A URL such as `s3://…` is refused, so that no folder named `s3:` is created.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from millrace.domain.errors import InvalidInput

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")  # one slash: Path turns // into /


def local_path(given: str | os.PathLike[str], what: str) -> Path:
    """Return a local path. A `file://` URL is converted to a path.

    Raises InvalidInput for a URL with another scheme. `what` is the name of the setting in the message.
    """
    text = os.fspath(given)
    scheme = _SCHEME.match(text)
    if scheme is None:
        return Path(given)
    if scheme[1].lower() != "file":
        raise InvalidInput(
            f"{what} {text!r} is a URL, and {scheme[1]}:// is not supported here: it must be a path on this machine. "
            "To share it with other machines, use a disk that all of them mount, such as /mnt/shared"
        )
    url = urlsplit(text)
    if url.netloc not in ("", "localhost") or url.query or url.fragment or not url.path.startswith("/"):
        raise InvalidInput(f"{what} {text!r} is not a file on this machine; write file:///path, or the path alone")
    return Path(unquote(url.path))
