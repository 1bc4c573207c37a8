"""The worker's side of the example: the handlers. Run `millrace worker --app tasks:app` beside it.

Airflow does not import this file. It submits jobs by the names of these tasks.
"""

from millrace import App

app = App()  # the store is MILLRACE_URL


@app.task(name="resize")
def resize(picture: str, width: int) -> str:
    if not picture.endswith(".jpg"):
        raise ValueError(f"{picture} is not a picture")
    return f"{picture} at {width}"


@app.task(name="album")
def album(day: str, pictures: list[str]) -> dict[str, str | int]:
    return {"day": day, "pictures": len(pictures)}
