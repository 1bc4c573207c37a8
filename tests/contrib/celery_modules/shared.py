"""Tasks of a reusable package: they belong to whichever app the program has."""

from millrace.contrib.celery import shared_task


@shared_task
def count_words(text):
    return len(text.split())


@shared_task(bind=True, name="shared.whoami")
def whoami(self):
    return [self.name, self.request.delivery_info["routing_key"]]
