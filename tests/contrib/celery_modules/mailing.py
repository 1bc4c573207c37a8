"""Tasks that are retried, in the style of Celery's documentation."""

from collections import Counter

from millrace.contrib.celery import Celery, get_task_logger
from millrace.contrib.celery.exceptions import Ignore, MaxRetriesExceededError, Reject

logger = get_task_logger(__name__)
app = Celery("mailing", broker="memory://")

tries: Counter[str] = Counter()


class SmtpDown(Exception):
    pass


class BadAddress(SmtpDown):
    pass


def smtp(to, fails):
    tries[to] += 1
    if tries[to] <= fails:
        raise SmtpDown(f"try {tries[to]} for {to}")


@app.task(bind=True, default_retry_delay=30 * 60)
def send(self, to, fails=0):
    try:
        smtp(to, fails)
    except SmtpDown as exc:
        logger.info("retry of %s", to)
        raise self.retry(exc=exc, countdown=0, max_retries=5)
    return {"id": self.request.id, "retries": self.request.retries, "args": self.request.args}


@app.task(bind=True, max_retries=1)
def gives_up(self):
    raise self.retry(countdown=0)


@app.task(bind=True, max_retries=0)
def handles_the_end(self):
    try:
        self.retry(countdown=0)
    except MaxRetriesExceededError:
        return "given up"


@app.task(autoretry_for=(SmtpDown,), dont_autoretry_for=(BadAddress,), retry_kwargs={"max_retries": 2, "countdown": 0})
def send_bulk(to, fails):
    smtp(to, fails)
    return tries[to]


@app.task(autoretry_for=(SmtpDown,), retry_backoff=True, retry_backoff_max=600, retry_jitter=False, max_retries=None)
def send_slowly(to):
    smtp(to, 99)


@app.task(autoretry_for=(SmtpDown,), dont_autoretry_for=(BadAddress,), retry_kwargs={"countdown": 0})
def send_to_bad(to):
    tries[to] += 1
    raise BadAddress(to)


@app.task(bind=True)
def import_contacts(self, rows):
    for number in range(rows):
        self.update_state(state="PROGRESS", meta={"done": number + 1, "of": rows})
    return rows


@app.task(bind=True)
def ends_early(self, how):
    if how == "ignore":
        raise Ignore()
    raise Reject("not mine", requeue=False)
