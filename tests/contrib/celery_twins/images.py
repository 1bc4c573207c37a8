"""The image pipeline of examples/images.py with Celery: a chord of chains, each of which ends in a chord.

Run a worker: millrace worker --app images:app, and then: python images.py
"""

from __future__ import annotations

import sys
from pathlib import Path

from millrace.contrib.celery import Celery, Task, chain, chord, group

SIZES = (48, 24)
NAMES = ("dunes", "forest", "harbour", "meadow")


class Retried(Task):
    autoretry_for = (Exception,)
    retry_backoff = True
    acks_late = True
    time_limit = 300


app = Celery("images", broker="sqla+sqlite:///jobs.db", backend="db+sqlite:///jobs.db", task_cls=Retried)


@app.task
def draw(folder: str, name: str, size: int = 96) -> str:
    """Draw a picture and return its path. The colours depend on the name."""
    seed = sum(map(ord, name))
    rows = [[((x * seed) % 256, (y * 5) % 256, (x * y + seed) % 256) for x in range(size)] for y in range(size)]
    return save(Path(folder, f"{name}.ppm"), rows)


@app.task
def shrink(path: str, size: int) -> str:
    """Make a thumbnail of a picture and return its path."""
    rows = read(path)
    step = len(rows) // size
    small = [[row[x * step] for x in range(size)] for row in rows[::step][:size]]
    return save(Path(path).with_suffix(f".{size}.ppm"), small)


@app.task
def contact_sheet(pictures: list[list[str]], folder: str) -> str:
    """Put the thumbnails of all pictures into one image: a row for each size, a column for each picture."""
    rows: list[list[Pixel]] = []
    for of_one_size in zip(*pictures, strict=True):
        images = [read(path) for path in of_one_size]
        for y in range(len(images[0])):
            row = [pixel for image in images for pixel in image[y]]
            rows.append(row + [(0, 0, 0)] * (SIZES[0] * len(pictures) - len(row)))
    return save(Path(folder, "contact-sheet.ppm"), rows)


@app.task
def collect(paths: list[str]) -> list[str]:
    """Make one result of the results of a group, because the header of a chord takes tasks only."""
    return paths


def pipeline(folder: str) -> chord:
    pictures = []
    for name in NAMES:
        thumbnails = group(shrink.s(size) for size in SIZES)
        pictures.append(chain(draw.s(folder, name), thumbnails, collect.s()))
    return chord(pictures, contact_sheet.s(folder=folder))


def main(folder: str = "contact-sheet") -> None:
    result = pipeline(folder).delay()
    sheet = result.get(timeout=60)
    done = len(NAMES) * (len(SIZES) + 2) + 1
    print(f"{sheet}: {done} jobs")


# ── pictures, as text (PPM) ───────────────────────────────────────────────────────────────────

Pixel = tuple[int, int, int]


def save(path: Path, rows: list[list[Pixel]]) -> str:
    """Write an image to a file of its own first: a retried job may write it twice, and a reader sees it whole."""
    body = "\n".join(" ".join(f"{red} {green} {blue}" for red, green, blue in row) for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(f"P3 {len(rows[0])} {len(rows)} 255\n{body}\n", encoding="ascii")
    part.replace(path)
    return str(path)


def read(path: str) -> list[list[Pixel]]:
    _, width, height, _, *values = Path(path).read_text(encoding="ascii").split()
    numbers = list(map(int, values))
    pixels = list(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True))
    return [pixels[y * int(width) : (y + 1) * int(width)] for y in range(int(height))]


if __name__ == "__main__":
    main(*sys.argv[1:])
