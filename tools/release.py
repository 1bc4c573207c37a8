"""Check that what is in dist/ may be published as this version.

A published version can never be changed, so everything that can be checked beforehand is checked here.

    python -m tools.release dist            the wheel, the source distribution and the SBOM in dist/
    python -m tools.release dist v0.1.0     the same, and that this tag is the version
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import millrace
from tools.install_part import ROOT

URLS = ("Repository", "Documentation", "Issues", "Changelog")  # shown by the index beside the description


def main(arguments: Sequence[str]) -> int:
    folder, *tags = arguments
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    found = list(problems(millrace.__version__, project, changes, {file.name for file in Path(folder).iterdir()}, tags))
    for problem in found:
        print(f"not to be released: {problem}", file=sys.stderr)
    if not found:
        print(f"millrace {millrace.__version__} may be released")
    return int(bool(found))


def problems(
    version: str, project: dict[str, Any], changes: str, files: set[str], tags: Sequence[str]
) -> Iterator[str]:
    """Yield every reason why this version may not be published."""
    wanted = {f"millrace-{version}-py3-none-any.whl", f"millrace-{version}.tar.gz", f"millrace-{version}.cdx.json"}
    if files != wanted:
        yield f"dist/ must hold {', '.join(sorted(wanted))}; it holds {', '.join(sorted(files)) or 'nothing'}"
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE):
        yield f"CHANGELOG.md has no section '## [{version}] - YYYY-MM-DD'"
    missing = [name for name in URLS if name not in project.get("urls", {})]
    if missing:
        yield f"[project.urls] in pyproject.toml has no {', '.join(missing)}"
    if tags and list(tags) != [f"v{version}"]:
        yield f"the tag is {' '.join(tags)}, but the version in src/millrace/__init__.py is {version}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
