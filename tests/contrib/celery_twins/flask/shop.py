"""The shop of examples/flask with Celery, with the factory that Flask's documentation shows.

Run it: flask --app shop run, and a worker: millrace worker --app shop:celery_app
"""

from flask import Flask, current_app, request

from millrace.contrib.celery import AsyncResult, Celery, Task, shared_task


def celery_init_app(app: Flask) -> Celery:
    class FlaskTask(Task):
        def __call__(self, *args: object, **kwargs: object) -> object:
            with app.app_context():
                return self.run(*args, **kwargs)

    celery_app = Celery(app.name, task_cls=FlaskTask)
    celery_app.config_from_object(app.config["CELERY"])
    celery_app.set_default()
    app.extensions["celery"] = celery_app
    return celery_app


@shared_task(bind=True, max_retries=2, acks_late=True, time_limit=30)
def send_receipt(self, product: str) -> str:
    try:
        return current_app.config["THANKS"].format(product)
    except Exception as error:
        raise self.retry(exc=error, countdown=[1, 10, 10][self.request.retries])


def create_app() -> Flask:
    app = Flask(__name__)
    app.config["THANKS"] = "Thank you for the {}."
    app.config["CELERY"] = {"broker_url": "sqla+sqlite:///jobs.db", "result_backend": "db+sqlite:///jobs.db"}
    app.config.from_prefixed_env()
    celery_init_app(app)

    @app.post("/orders")
    def create_order() -> dict[str, str]:
        return {"job": send_receipt.delay(request.form["product"]).id}

    @app.get("/orders/<job_id>")
    def read_order(job_id: str) -> dict[str, str]:
        try:
            return {"receipt": AsyncResult(job_id).get(timeout=5)}
        except Exception as error:
            return {"error": str(error)}

    return app


flask_app = create_app()
celery_app = flask_app.extensions["celery"]
