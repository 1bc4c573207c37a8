"""A queue that is a bucket: producers and workers share nothing else, and there is no server to run.

export AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… MILLRACE_URL=s3://jobs/example
millrace init                                        # once: creates the bucket and its rules
python s3_queue.py cat.jpg dog.jpg                   # on any machine
millrace worker --app s3_queue:app                   # on any other
"""

import os
import sys

from millrace import App

app = App(os.environ.get("MILLRACE_URL", "s3://jobs/example"))


@app.task(keep_result="1d")
def thumbnail(photo: str) -> str:
    return f"{photo}: 200 pixels wide"


if __name__ == "__main__":
    with app.sync:
        # The photo is the id: a producer that is started twice enqueues it once.
        specs = [thumbnail.options(id=f"thumbnail {photo}").spec(photo) for photo in sys.argv[1:]]
        for job in app.sync.enqueue(specs):
            print(job.id, job.result() if job.status().state == "completed" else job.status().state)
