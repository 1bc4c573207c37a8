"""Write the software bill of materials of a release: the runtime packages of all extras, at the locked versions.

The packages are those that this environment needs. Packages for other systems are in the lock file, but not in the
SBOM.

    python -m tools.sbom dist      writes dist/millrace-VERSION.cdx.json, in the format CycloneDX
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

import millrace
from tools.install_part import ROOT, normal, of_extras, read_lock


def main(arguments: Sequence[str]) -> int:
    folder = Path(arguments[0])
    folder.mkdir(exist_ok=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    wanted = project["project"]["dependencies"] + of_extras(project, ["all"])
    lock = read_lock((ROOT / "requirements.lock").read_text("utf-8"))
    file = folder / f"millrace-{millrace.__version__}.cdx.json"
    file.write_text(bill("".join(lock[name] for name in sorted(runtime(map(Requirement, wanted))))), "utf-8")
    print(file)
    return 0


def runtime(wanted: Iterable[Requirement]) -> set[str]:
    """Return the names of these packages and of everything that they need in this environment."""
    found: set[str] = set()
    left = list(wanted)
    seen: set[str] = set()
    while left:
        one = left.pop()
        if str(one) not in seen and (one.marker is None or one.marker.evaluate({"extra": ""})):
            seen.add(str(one))
            found.add(normal(one.name))
            left += needs(one)
    return found


def needs(one: Requirement) -> Iterator[Requirement]:
    """Return what an installed package needs, with the extras that are asked for, and without their markers."""
    for text in requires(one.name) or ():
        needed = Requirement(text)
        extras = [{"extra": extra} for extra in one.extras or {""}]
        if needed.marker is None or any(needed.marker.evaluate(extra) for extra in extras):
            needed.marker = None
            yield needed


def bill(lines: str) -> str:
    """Return the SBOM of these lines of the lock file. The version of the project itself is not in pyproject.toml."""
    command = ["cyclonedx_py", "requirements", "--pyproject", str(ROOT / "pyproject.toml"), "--mc-type", "library"]
    made = subprocess.run(
        [sys.executable, "-m", *command, "--output-reproducible", "-"],
        input=lines,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    document = json.loads(made.stdout)
    document["metadata"]["component"]["version"] = millrace.__version__
    return json.dumps(document, indent=2) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
