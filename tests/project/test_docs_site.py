"""The documentation site: it builds without a warning, and has what its hook adds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=580,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_links_to_files_outside_of_the_docs_lead_to_pages_or_copies(site: Path) -> None:
    assert 'href="../source/src/millrace/demo/shop.py"' in (site / "demo" / "index.html").read_text("utf-8")
    assert (site / "source" / "src" / "millrace" / "demo" / "shop.py").exists()
    assert 'href="../glossary/' in (site / "architecture" / "index.html").read_text("utf-8")
    assert 'href="0001-hard-cases/"' in (site / "decisions" / "index.html").read_text("utf-8")


def test_the_reference_has_signatures_and_docstrings(site: Path) -> None:
    page = (site / "reference" / "app" / "index.html").read_text("utf-8")

    assert 'id="millrace.App.task"' in page
    assert "The store opens at first use" in page


def test_pages_load_nothing_from_other_hosts(site: Path) -> None:
    pages = [site / "index.html", site / "tutorial" / "index.html", site / "reference" / "app" / "index.html"]
    for page in pages:
        text = page.read_text("utf-8")
        assert '<script src="http' not in text and 'rel="stylesheet" href="http' not in text


def test_language_models_get_an_index_of_markdown_pages(site: Path) -> None:
    index = (site / "llms.txt").read_text("utf-8")

    assert index.startswith("# Millrace\n")
    assert "- [Retries and backoff](howto/retries.md): This page describes when and how a job is retried." in index
    assert (site / "howto" / "retries.md").read_text("utf-8").startswith("# Retries")
