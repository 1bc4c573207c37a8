"""Tasks with a base class, and a task that is a class."""

from millrace.contrib.celery import Celery, Task

log: list[tuple[str, str | None]] = []
context: list[str] = []


class Audited(Task):
    autoretry_for = (ConnectionError,)
    retry_kwargs = {"max_retries": 1, "countdown": 0}
    _db = None

    @property
    def db(self):
        if self._db is None:
            self._db = {"ada": 36}
        return self._db

    def before_start(self, task_id, args, kwargs):
        log.append(("before", self.name))

    def on_success(self, retval, task_id, args, kwargs):
        log.append(("success", str(retval)))

    def on_retry(self, exc, task_id, args, kwargs, einfo):
        log.append(("retry", str(exc)))

    def on_failure(self, exc, task_id, args, kwargs, einfo):
        assert type(exc).__name__ in einfo.traceback
        log.append(("failure", str(exc)))

    def after_return(self, status, retval, task_id, args, kwargs, einfo):
        log.append(("after", status))


class InContext(Task):
    """The pattern of web frameworks: every run has a context around it."""

    def __call__(self, *args, **kwargs):
        context.append("enter")
        try:
            return self.run(*args, **kwargs)
        finally:
            context.append("leave")


class InContextWithSuper(Task):
    def __call__(self, *args, **kwargs):
        context.append("enter")
        return super().__call__(*args, **kwargs)


app = Celery("classes", broker="memory://", task_cls=InContext)


@app.task(base=Audited, bind=True)
def age_of(self, name):
    return self.db[name]


@app.task(base=Audited)
def fetch(url):
    raise ConnectionError(url)


@app.task
def in_context():
    return list(context)


@app.task(base=InContextWithSuper, bind=True)
def in_context_with_super(self):
    return self.request.id


class Crawl(Task):
    name = "classes.crawl"
    max_retries = 7

    def run(self, url):
        return f"crawled {url}"


crawl = app.register_task(Crawl())
