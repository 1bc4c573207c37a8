"""A shop on Flask, with an application factory.

Run it with two terminals:

    flask --app shop run
    flask --app shop millrace worker

Then order something: curl -d product=tea http://127.0.0.1:5000/orders
"""

from flask import Flask, abort, current_app, request

from millrace import JobFailed, WaitTimeout
from millrace.contrib.flask import Millrace

queue = Millrace("sqlite:///jobs.db")


@queue.task(retry=["1s", "10s"], timeout="30s")
def send_receipt(product: str) -> str:
    return current_app.config["THANKS"].format(product)


def create_app() -> Flask:
    app = Flask(__name__)
    app.config["THANKS"] = "Thank you for the {}."
    app.config.from_prefixed_env()  # FLASK_MILLRACE_URL=postgresql://…
    queue.init_app(app)

    @app.post("/orders")
    def create_order() -> dict[str, str]:
        return {"job": send_receipt.sync.enqueue(request.form["product"]).id}

    @app.get("/orders/<job_id>")
    def read_order(job_id: str) -> dict[str, str]:
        if queue.sync.jobs.get(job_id) is None:
            abort(404)
        try:
            return {"receipt": queue.sync.jobs.handle(job_id, send_receipt).result(wait="5s")}
        except (WaitTimeout, JobFailed) as error:
            return {"error": str(error)}

    return app
