"""Webhooks in order: a customer's events arrive one after the other, and a customer who is down delays no other.

The pool has a fixed number of lanes. The customer is the partition key, so all events of a customer are in one lane,
and a lane runs one job at a time. A failed delivery blocks its lane until the retry, so no event overtakes another.

Run it: python webhooks.py
"""

import asyncio
import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from millrace import App

app = App("sqlite:///webhooks.db")


@app.pool("webhooks", lanes=16, partition_by=lambda customer, url, event: customer, retry=[0.1, 0.5, 1], timeout="10s")
def deliver(customer: str, url: str, event: dict[str, int]) -> int:
    body = json.dumps(event).encode()
    request = urllib.request.Request(f"{url}/{customer}", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=5) as response:
        return int(response.status)


class Receiver(BaseHTTPRequestHandler):
    """The customers' servers. That of bob is down at first."""

    received: list[tuple[str, int]] = []
    refusals = 2

    def do_POST(self) -> None:
        customer = self.path.strip("/")
        number = json.loads(self.rfile.read(int(self.headers["content-length"])))["number"]
        refused = customer == "bob" and Receiver.refusals > 0
        if refused:
            Receiver.refusals -= 1
        else:
            Receiver.received.append((customer, number))
        self.send_response(503 if refused else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


async def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    async with app, app.worker():
        jobs = await deliver.enqueue_many(
            {"customer": customer, "url": url, "event": {"number": number}}
            for number in range(5)
            for customer in ("ada", "bob", "eve")
        )
        for job in jobs:
            await job.result(wait="1m")
    for customer in ("ada", "bob", "eve"):
        print(customer, *[number for name, number in Receiver.received if name == customer])
    server.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
