"""Tasks with process=True that do not retry every exception."""

from __future__ import annotations

from millrace import App

app = App("memory://", retry=[0], max_attempts=2)


class Declined(ValueError): ...


@app.task(process=True, dont_retry_on=ValueError)
def charge(card: str) -> None:
    raise Declined(f"no: {card}")


@app.batch_task(process=True, retry_on=ConnectionError)
def charge_all(cards: list[str]) -> list[Exception]:
    return [Declined(f"no: {card}") if card else ConnectionError("no answer") for card in cards]
