"""Write to a directory store until killed, and say on standard output what was answered."""

import asyncio
import os
import sys

from millrace.store.object.blobs import Blobs, Won
from millrace.store.object.directory import DirectoryBlobs

WRITERS = 8
FILLING = b"x" * 200_000  # large enough to be caught in the middle


async def write(blobs: Blobs, me: int) -> None:
    key = f"tasks/{me % 2}/{me}.json"
    found = await blobs.get(key)
    number = int(found.body.split(b" ", 1)[0]) if found else 0
    tag = found.tag if found else None
    while True:
        number += 1
        body = b"%d %b %d" % (number, FILLING, number)
        answer = await (blobs.swap(key, body, tag) if tag else blobs.create(key, body))
        assert isinstance(answer, Won)
        tag = answer.tag
        os.write(1, b"%d %d\n" % (me, number))  # in one piece, whenever the end comes


async def main(root: str, level: str) -> None:
    blobs = Blobs(
        DirectoryBlobs(root, durability="relaxed" if level == "relaxed" else "full", keep_versions=["tasks/"])
    )
    await blobs.connect()
    await asyncio.gather(*(write(blobs, me) for me in range(WRITERS)))


asyncio.run(main(*sys.argv[1:]))
