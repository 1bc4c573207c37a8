"""`millrace pipeline run`, `audit` and `compact`, as they are typed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from millrace.cli import exits
from millrace.cli.pipeline import options as pipeline_options
from millrace.cli.root import run
from millrace.domain.job import Spec
from millrace.spark.lake import LakePlace, take
from tests.spark.conftest import Place
from tests.spark.filled import fill

pytestmark = pytest.mark.usefixtures("shared_session")


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    code = run(["pipeline", *arguments, "--json"])
    out = capsys.readouterr().out
    return code, json.loads(out) if out else None


def test_run_audit_compact_from_the_first_event_to_a_broken_lake(
    sqlite: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake, url = str(tmp_path / "lake"), sqlite.url
    with sqlite.open() as opened:
        opened.run(fill(opened.store, 10))

    code, first = answer(capsys, "run", "--url", url, "--lake", lake)
    assert (code, first["take"], first["taken"]) == (exits.OK, 1, first["events"])
    assert first["taken"] > 20

    code, again = answer(capsys, "run", "--url", url, "--lake", lake, "--keep-events", "90d")
    assert (code, again["taken"], again["take"], again["dropped_rows"]) == (exits.OK, 0, 1, 0)

    code, verdict = answer(capsys, "audit", "--lake", lake, "--url", url)
    assert (code, verdict["sound"], verdict["findings"]) == (exits.OK, True, [])
    assert len(verdict["checks"]) == 6

    code, folded = answer(capsys, "compact", "--lake", lake)
    assert (code, folded["files_before"] > folded["files_after"]) == (exits.OK, True)

    place = LakePlace(lake)
    file = place.require().of("events")[0]
    (Path(place.location.root) / "events" / file.path).unlink()
    code = run(["pipeline", "audit", "--lake", lake])
    said = capsys.readouterr().out
    assert code == exits.NO
    assert "job-3" in said and file.path in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("audit", "--lake", "nowhere"), "there is no lake at"),
        (("compact", "--lake", "nowhere"), "there is no lake at"),
        *(
            ((command, "--lake", f"{scheme}://bucket/lake", *more), f"{scheme}:// is not supported here")
            for command, *more in (("run",), ("audit",), ("compact",), ("report", "--out", "r.html"))
            for scheme in ("s3a", "gs", "hdfs", "https")
        ),
        (("report", "--lake", "x", "--out", "s3://bucket/r.html"), "s3:// is not supported here"),
        (("replay", "--url", "sqlite:///x.db", "--manifest", "s3://b/m.jsonl"), "s3:// is not supported here"),
        (("run", "--lake", "file://elsewhere/lake"), "is not a file on this machine"),
        (("run", "--lake", "x"), "no store is set"),
        (("run", "--lake", "x", "--url", "sqlite:///none.db", "--pause", "soon"), "--pause"),
        (("audit", "--lake", "x", "--as-of", "soon"), "--as-of takes how long ago"),
        (("run", "--lake", "x", "--url", "memory://"), "memory:// lives inside one process"),
        (("run", "--lake", "x", "--url", "sqlite:///none.db"), "there is no database"),
        (("run", "--lake", "x", "--url", "sqlite:///none.db", "--keep-events", "5m"), "less than a day"),
        (("run", "--lake", "x", "--url", "sqlite:///none.db", "--since", "soon"), "--since takes how long ago"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(
    arguments: tuple[str, ...],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    code = run(["pipeline", *arguments])

    assert code in (exits.USAGE, exits.STORE)
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_url_with_a_secret_goes_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pipeline_options.SECRET_URL, "")

    assert pipeline_options.options_for("sqlite:////data/jobs.db") == {"url": "sqlite:////data/jobs.db"}
    secret = "postgres://me:s3cret@db/jobs"
    assert pipeline_options.options_for(secret) == {"urlEnv": pipeline_options.SECRET_URL}
    assert os.environ[pipeline_options.SECRET_URL] == secret


def test_a_run_that_follows_the_store_ends_cleanly_when_it_is_interrupted(
    sqlite: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two takes, and then Ctrl-C during the pause."""
    from millrace.spark import lake as module

    lake = str(tmp_path / "lake")
    with sqlite.open() as opened:
        opened.run(fill(opened.store, 5))
    runs: list[Any] = []

    def one_run(*given: Any) -> Any:
        with sqlite.open() as opened:
            opened.run(opened.store.enqueue([Spec(f"new-{len(runs)}", "t")]))
        runs.append(take(*given))
        if len(runs) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return runs[-1]

    monkeypatch.setattr(module, "take", one_run)
    code, said = answer(capsys, "run", "--url", sqlite.url, "--lake", lake, "--follow", "--pause", "10ms")

    assert (code, len(runs), said["take"]) == (exits.OK, 2, 2)
    assert said["taken"] == said["events"] == LakePlace(lake).require().state.taken
