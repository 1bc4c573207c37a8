"""Run tests/object on a real S3 server: Ceph's RADOS gateway, from Debian's packages.

MiniStack is in every test run because it comes as a wheel. Ceph is a production server; it spells tags and refusals
differently, and it checks signatures. One monitor, one OSD in memory and one gateway are started on loopback ports,
and stopped at the end by their process ids.

    python tools/ceph.py                                    the object store's tests that talk to a bucket
    python tools/ceph.py -x tests/object/test_races.py      the same with options for pytest
    python tools/ceph.py --serve                            only start it, and print what to export

Installed ceph-mon, ceph-osd and radosgw are used; otherwise their packages are downloaded and unpacked into .ceph/,
which takes 330 MB and no root. Ceph 16 cannot compare and swap in a bucket with versions (BO-23), so the bucket has
none, and the tests of versions are skipped.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from millrace.domain.errors import StoreError
from millrace.store.object.s3 import BucketAddress, S3Blobs

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".ceph"
PACKAGES = ("ceph-mon", "ceph-osd", "radosgw", "ceph-common", "ceph-base")
DAEMONS = ("ceph-mon", "ceph-osd", "radosgw")
START_LIMIT = 120.0
TIME_LIMIT = "600"  # seconds for one test; those with a thousand jobs are slow here
BUCKET = "millrace-ceph"
NEEDS_A_SERVER = "not directory and not memory"  # the other tests do not depend on the server

CONFIGURATION = """\
[global]
fsid = {fsid}
keyring = {home}/keyring
mon initial members = a
mon host = [v2:127.0.0.1:{v2},v1:127.0.0.1:{v1}]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
public network = 127.0.0.0/8
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
run dir = {home}/run
admin socket = {home}/run/$name.asok
log file = {home}/log/$name.log
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon data avail warn = 1
mon data avail crit = 1
{plugins}
[mon]
mon data = {home}/mon
mon cluster log file = {home}/log/cluster.log
[osd]
osd data = {home}/osd
osd objectstore = memstore
memstore device bytes = 4G
osd memory target = 1G
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
rgw data = {home}/rgw
rgw dynamic resharding = false
"""


class NoCeph(Exception):
    """Ceph is not available or did not start; the message says what to do."""


def main(arguments: Sequence[str]) -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the daemons are stopped
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with running_ceph() as environment:
            print_findings(environment)
            if "--serve" in arguments:
                return serve(environment)
            return run_tests(environment, arguments)
    except NoCeph as error:
        print(error, file=sys.stderr)
        return 1


def run_tests(environment: Mapping[str, str], options: Sequence[str]) -> int:
    chosen = [] if "-k" in options else ["-k", NEEDS_A_SERVER]
    paths = [] if any(Path(ROOT, option.partition("::")[0]).exists() for option in options) else ["tests/object"]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not nightly", "--timeout", TIME_LIMIT, *chosen, *options]
    began = time.monotonic()
    done = subprocess.run([*command, *paths], cwd=ROOT, env={**os.environ, **environment}, check=False)
    print(f"on Ceph, in {time.monotonic() - began:.0f} s", flush=True)
    return done.returncode


def serve(environment: Mapping[str, str]) -> int:
    for name, value in environment.items():
        print(f"export {name}={value}")
    print("Ceph runs until you press Ctrl-C.", flush=True)
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        return 0


# ── the probe's findings ──────────────────────────────────────────────────────────────────────────


def print_findings(environment: Mapping[str, str]) -> None:
    """Print the probe's findings for the bucket in use, and for one with versions."""
    plain = S3Blobs(address(environment, BUCKET))
    plain.admin.setup(versioning=False)
    asyncio.run(plain.connect())
    assert plain.findings is not None
    print(f"Ceph answers at {environment['S3_ENDPOINT']}. In a bucket without versions it passes:")
    for check in plain.findings.checks:
        print(f"  - {check}")
    print(f"  tags go {'in quotation marks' if plain.quotes else 'without quotation marks'};", end=" ")
    print(f"conditional reads {'work' if plain.findings.conditional_reads else 'do not work'}")
    versioned = S3Blobs(address(environment, f"{BUCKET}-versioned"))
    versioned.admin.setup(versioning=True)
    try:
        asyncio.run(versioned.connect())
    except StoreError as error:
        print(f"In a bucket with versions it is refused, as it should be (BO-23): {error}")
    else:
        print("In a bucket with versions it passes as well; this Ceph can be used with them.")
    print("So there are no versions here, and tests that need them say so when they are skipped.", flush=True)


def address(environment: Mapping[str, str], bucket: str) -> BucketAddress:
    return BucketAddress(
        bucket=bucket,
        prefix="probe/",
        endpoint=environment["S3_ENDPOINT"],
        region=environment["AWS_REGION"],
        versioning="optional",
        access_key=environment["AWS_ACCESS_KEY_ID"],
        secret_key=environment["AWS_SECRET_ACCESS_KEY"],
    )


# ── the cluster ───────────────────────────────────────────────────────────────────────────────────


@contextmanager
def running_ceph() -> Iterator[dict[str, str]]:
    """Start the cluster. Yields the environment variables to reach it."""
    programs = Programs()
    port = free_port()
    access, secret = secrets.token_hex(8), secrets.token_hex(16)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-ceph-")))
        stack.enter_context(explained(home))
        settings = configure(home, programs, port)
        make_monitor(home, programs, settings)
        stack.enter_context(daemon(programs, "ceph-mon", "-c", settings, "-i", "a"))
        make_osd(programs, settings)
        stack.enter_context(daemon(programs, "ceph-osd", "-c", settings, "-i", "0"))
        gateway = stack.enter_context(daemon(programs, "radosgw", "-c", settings, "-n", "client.rgw"))
        await_answer(f"http://127.0.0.1:{port}/", gateway)
        keys = (f"--access-key={access}", f"--secret={secret}")
        programs.run("radosgw-admin", "-c", settings, "user", "create", "--uid=test", "--display-name=test", *keys)
        yield {
            "S3_ENDPOINT": f"http://127.0.0.1:{port}",
            "S3_BUCKET": BUCKET,
            "AWS_ACCESS_KEY_ID": access,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": "us-east-1",
        }


@contextmanager
def explained(home: Path) -> Iterator[None]:
    """On a failure, print the last lines of the logs, which are deleted with the folder."""
    try:
        yield
    except NoCeph as error:
        logs = sorted((home / "log").glob("*.log"))
        last = [f"{log.name}: {line}" for log in logs for line in log.read_text("utf-8", "replace").splitlines()[-8:]]
        raise NoCeph("\n".join([str(error), *last])) from None


def configure(home: Path, programs: Programs, port: int) -> str:
    for name in ("mon", "osd", "rgw", "run", "log"):
        (home / name).mkdir()
    fsid, v2, v1 = uuid.uuid4(), free_port(), free_port()
    file = home / "ceph.conf"
    text = CONFIGURATION.format(fsid=fsid, home=home, v2=v2, v1=v1, port=port, plugins=programs.plugins)
    file.write_text(text, "utf-8")
    (home / "addresses").write_text(f"[v2:127.0.0.1:{v2},v1:127.0.0.1:{v1}]", "utf-8")
    (home / "fsid").write_text(str(fsid), "utf-8")
    return str(file)


def make_monitor(home: Path, programs: Programs, settings: str) -> None:
    ring = str(home / "keyring")
    everything = ("--cap", "mon", "allow *", "--cap", "osd", "allow *")
    programs.run("ceph-authtool", "--create-keyring", ring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
    for name in ("client.admin", "client.rgw"):
        programs.run("ceph-authtool", ring, "--gen-key", "-n", name, *everything)
    osd = ("--cap", "mon", "allow profile osd", "--cap", "osd", "allow *")
    programs.run("ceph-authtool", ring, "--gen-key", "-n", "osd.0", *osd)
    map_file, addresses, fsid = str(home / "monmap"), (home / "addresses").read_text(), (home / "fsid").read_text()
    programs.run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", addresses, map_file)
    programs.run("ceph-mon", "-c", settings, "--mkfs", "-i", "a", "--monmap", map_file, "--keyring", ring)


def make_osd(programs: Programs, settings: str) -> None:
    name = str(uuid.uuid4())
    programs.run("ceph", "-c", settings, "--connect-timeout", "60", "osd", "create", name)
    programs.run("ceph-osd", "-c", settings, "-i", "0", "--mkfs", "--osd-uuid", name)


@contextmanager
def daemon(programs: Programs, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a daemon in the foreground of a child process, so that its id is known."""
    with subprocess.Popen(
        [programs.find(command[0]), *command[1:], "-f"],
        env=programs.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C must reach only this process, which stops them in order
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def await_answer(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise NoCeph(f"radosgw ended at once with code {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise NoCeph(f"Ceph's gateway did not answer within {START_LIMIT:g} s")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# ── the programs ──────────────────────────────────────────────────────────────────────────────────


class Programs:
    """The installed Ceph, or the one unpacked below .ceph/ with paths set to its files."""

    def __init__(self) -> None:
        self.root: Path | None = None
        if not all(map(shutil.which, DAEMONS)):
            self.root = unpacked()

    def find(self, name: str) -> str:
        found = shutil.which(name) if self.root is None else str(self.root / "usr/bin" / name)
        if found is None or not Path(found).exists():
            raise NoCeph(f"{name} is missing. Remove {HOME} and run this again, or install {' '.join(PACKAGES)}.")
        return found

    @property
    def _libraries(self) -> list[Path]:
        assert self.root is not None
        return [folder for parts in ("usr/lib", "lib") for folder in (self.root / parts).glob("*-linux-gnu")]

    @property
    def environment(self) -> dict[str, str]:
        if self.root is None:
            return dict(os.environ)
        folders = [str(folder) for found in self._libraries for folder in (found, found / "ceph")]
        modules = str(self.root / "usr/lib/python3/dist-packages")
        return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(folders), "PYTHONPATH": modules}

    @property
    def plugins(self) -> str:
        if self.root is None:
            return ""
        [library] = [folder for folder in self._libraries if (folder / "rados-classes").is_dir()]
        return (
            f"plugin dir = {library}/ceph\n"
            f"erasure code dir = {library}/ceph/erasure-code\n"
            f"osd class dir = {library}/rados-classes"
        )

    def run(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [self.find(name), *arguments], env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise NoCeph(f"{name} failed with code {done.returncode}:\n{done.stdout}{done.stderr}")


def unpacked() -> Path:
    """Download the packages and their dependencies once, and unpack them below .ceph/root."""
    root, ready = HOME / "root", HOME / "ready"
    if ready.exists():
        return root
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise NoCeph(f"Ceph is fetched from Debian's packages, and this is no Debian. Install {' '.join(DAEMONS)}.")
    shutil.rmtree(HOME, ignore_errors=True)
    (HOME / "packages/partial").mkdir(parents=True)
    root.mkdir()
    print(f"Downloading Ceph into {HOME.name}/ (70 MB, once)", flush=True)
    fetch = ("apt-get", "-q", "-y", "--no-install-recommends", "--download-only", "-o", "Debug::NoLocking=1")
    place = ("-o", f"Dir::Cache::Archives={HOME / 'packages'}")
    done = subprocess.run([*fetch, *place, "install", *PACKAGES], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoCeph(f"apt-get could not download Ceph (does `apt-get update` help?):\n{done.stdout}{done.stderr}")
    for package in sorted((HOME / "packages").glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
    shutil.rmtree(HOME / "packages")
    ready.touch()
    return root


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
