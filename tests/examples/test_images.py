"""examples/images.py: the image pipeline runs as a program, and its flow makes every picture."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "examples" / "images.py"


@pytest.mark.parametrize("store", ["memory://", "sqlite:///jobs.db"])
def test_the_image_pipeline_makes_a_contact_sheet_of_all_thumbnails(store: str, tmp_path: Path):
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), store, "sheet"],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert (ran.returncode, ran.stdout) == (0, "sheet/contact-sheet.ppm: 13 jobs\n"), ran.stderr
    assert len(list((tmp_path / "sheet").glob("*.ppm"))) == 4 * 3 + 1
    kind, width, height, _ = (tmp_path / "sheet" / "contact-sheet.ppm").read_text(encoding="ascii").split(maxsplit=3)
    assert (kind, width, height) == ("P3", str(4 * 48), str(48 + 24))
