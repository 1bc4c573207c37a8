"""Tasks of a small program, in the style of Celery's documentation. Only the import is another."""

from millrace.contrib.celery import Celery

app = Celery("first_steps", broker="memory://", backend="rpc://")

app.conf.update(
    result_expires=3600,
    task_serializer="json",
    accept_content=["json"],
    timezone="Europe/Berlin",
    enable_utc=True,
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
)


@app.task
def add(x, y):
    return x + y


@app.task
def mul(x, y):
    """Multiply two numbers."""
    return x * y


@app.task
def total(numbers):
    return sum(numbers)


@app.task(name="first_steps.hello", ignore_result=True)
def say_hello(who="world"):
    return f"hello {who}"


@app.task
def echo(*args, **kwargs):
    return [list(args), kwargs]


@app.task(bind=True)
def whoami(self, before=None):
    request = self.request
    return {
        "id": request.id,
        "root": request.root_id,
        "parent": request.parent_id,
        "group": request.group,
        "args": list(request.args),
        "queue": request.delivery_info["routing_key"],
        "flags": [request.called_directly, request.is_eager, request.retries],
    }


@app.task(typing=False)
def unchecked(x):
    return x


@app.task
def divide(x, y):
    return x / y


@app.task(priority=7, queue="urgent", expires=120, time_limit=30, acks_late=True)
def configured():
    return "configured"


if __name__ == "__main__":
    app.start()
