"""An image pipeline as a flow: fan-out to thumbnails, fan-in to a contact sheet.

Each picture is drawn, and two thumbnails are made of it at the same time. When all are done, one job writes the contact
sheet. The pictures are made up and written as PPM files, so that the program needs nothing but Python and Millrace.

Run it: `python images.py` uses a memory store and writes into the folder `contact-sheet`;
`python images.py sqlite:///jobs.db my-pictures` uses a file and another folder.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from millrace import App, Flow

SIZES = (48, 24)
NAMES = ("dunes", "forest", "harbour", "meadow")

app = App("memory://")


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


def pipeline(folder: str) -> Flow[str]:
    """Return the flow: draw each picture, shrink it to all sizes, and collect the thumbnails."""
    pictures = []
    for name in NAMES:
        drawn = draw.spec(folder, name)
        pictures.append(app.chain([drawn, app.gather([shrink.spec(drawn.output, size) for size in SIZES])]))
    return app.gather(pictures).then(contact_sheet, folder=folder)


async def main(url: str = "memory://", folder: str = "contact-sheet") -> None:
    app.use(url)
    async with app.worker():
        flow = await pipeline(folder).enqueue()
        sheet = await flow.result(wait="1m")
        status = await flow.status()
    print(f"{sheet}: {status.done} jobs")


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
    asyncio.run(main(*sys.argv[1:]))
