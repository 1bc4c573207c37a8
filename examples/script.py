"""A plain script: measure many files with eight at a time, and go on where an interrupted run has stopped.

Run it: python script.py FOLDER
"""

import hashlib
import sys
from pathlib import Path

from millrace import App

app = App("sqlite:///files.db")


@app.task(keep_result=None)
def measure(path: str) -> dict[str, int | str]:
    data = Path(path).read_bytes()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()[:12]}


def main(folder: Path) -> None:
    with app.sync:
        files = sorted(str(file) for file in folder.rglob("*.txt"))
        # The path is the id: a file that an earlier run has measured is not measured again.
        jobs = app.sync.enqueue(measure.options(id=file).spec(file) for file in files)
        print(f"{len(files)} files, {sum(job.is_duplicate for job in jobs)} known")
        app.sync.run(app.worker(slots=8, burst=True).run(handle_signals=False))
        for file, job in zip(files, jobs, strict=True):
            result = job.result()
            print(file, result["bytes"], result["sha256"])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
