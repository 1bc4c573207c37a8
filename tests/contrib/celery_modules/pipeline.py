"""Chains, groups and chords."""

from millrace.contrib.celery import Celery, chain, chord, group

app = Celery("pipeline", broker="memory://")
reports: list[tuple[str, str, str]] = []
ids: list[str] = []


@app.task
def fetch(name):
    if name == "missing":
        raise FileNotFoundError(name)
    return f"raw {name}"


@app.task
def shrink(picture, width=100):
    return f"{picture} at {width}"


@app.task
def album(pictures, title=""):
    return {"title": title, "pictures": pictures}


@app.task(ignore_result=True)
def unkept(value):
    return value


@app.task
def note(value=None):
    return ["noted", value]


@app.task
def report(request, exc, traceback):
    reports.append((request.task, type(exc).__name__, str(request.args)))


@app.task
def report_id(task_id):
    ids.append(task_id)


def make_album(names, title):
    return chord((chain(fetch.s(name), shrink.s(width=64)) for name in names), album.s(title=title))


def make_copies(name):
    return fetch.s(name) | group(shrink.s(width) for width in (64, 128))
