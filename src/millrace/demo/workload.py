"""The workload: the jobs that the shop's customers cause, and the time at which each is enqueued.

It is computed from a seed before the workers start.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from millrace.demo import shop
from millrace.domain.job import Spec

PER_SECOND = 40  # jobs for each second of the demo, by default
LEAST_JOBS, MOST_JOBS = 60, 100_000
TAIL = 3.5  # seconds at the end to run the remaining jobs; less if the demo is short
SLOTS = 12
CUSTOMERS = ("ada", "bob", "chloe", "dmitri", "emeka", "fatima", "grace", "hiro")
STEPS = ("reserve stock", "pack", "hand to carrier", "tell customer")
REPORTS = ("north", "south", "east", "west", "overseas", "outlet")
QUEUES = ("billing", "images", "mail", "orders", "quotes", "reports", "sms")
WIDTHS = (160, 640, 1280)


@dataclass(frozen=True)
class Arrival:
    """Jobs that are enqueued together, `at` seconds after the start. If `cancel` is set, they are then cancelled."""

    at: float
    jobs: tuple[Spec, ...]
    cancel: bool = False


@dataclass
class Workload:
    busy: float  # seconds
    arrivals: list[Arrival] = field(default_factory=list[Arrival])
    questions: list[float] = field(default_factory=list[float])  # when a caller asks for a price, and waits
    sms_rate: float = 1.0

    @property
    def tasks(self) -> Counter[str]:
        return Counter(spec.task for arrival in self.arrivals for spec in arrival.jobs)


def draw(seconds: float, jobs: int, seed: int) -> Workload:
    """Return a workload of about `jobs` jobs for a demo of `seconds` seconds."""
    chance = random.Random(seed)
    busy = seconds - min(TAIL, 0.45 * seconds)
    pace = min(2.0, SLOTS * busy / (jobs * 0.15))  # job durations fill the slots, within limits
    made = _Draw(chance, busy, pace)
    texts = max(4, jobs * 6 // 100)
    made.images(max(3, jobs * 14 // 100 // 6))
    made.orders(max(8, jobs * 24 // 100))
    made.billing(max(6, jobs * 14 // 100), max(3, jobs * 4 // 100))
    made.reports(max(4, jobs * 6 // 100))
    made.texts(texts)
    made.mail(jobs)
    workload = Workload(busy, sorted(made.arrivals, key=lambda arrival: arrival.at))
    workload.questions = sorted(chance.uniform(0, busy) for _ in range(max(3, jobs // 40)))
    workload.sms_rate = max(1.0, round(texts / (0.7 * busy), 1))
    return workload


class _Draw:
    def __init__(self, chance: random.Random, busy: float, pace: float) -> None:
        self.chance = chance
        self.busy = busy
        self.pace = pace
        self.arrivals: list[Arrival] = []
        self.count = 0

    def add(self, at: float, *jobs: Spec, cancel: bool = False) -> None:
        self.arrivals.append(Arrival(at, jobs, cancel))
        self.count += len(jobs)

    def when(self) -> float:
        return self.chance.uniform(0, self.busy)

    def ms(self, usual: int) -> int:
        return round(self.pace * usual * self.chance.uniform(0.5, 1.8))

    def spread(self, count: int, poisoned: int) -> Iterator[tuple[int, bool]]:
        """Return pairs (number, bad) for the numbers 0 to `count` - 1.

        `bad` is True for `poisoned` numbers, chosen at random. The jobs with these numbers cannot succeed.
        """
        bad = set(self.chance.sample(range(count), min(poisoned, count - 1)))
        return ((number, number in bad) for number in range(count))

    def images(self, products: int) -> None:
        """Add the jobs for product pictures. One picture does not exist, so its job and the dependent jobs die."""
        for product, missing in self.spread(products, 1):
            at = self.when() * (0.5 if missing else 0.9)
            url = f"https://cdn.example.com/{product}.jpg" + ("?missing" if missing else "")
            fetch = shop.fetch_image.spec(product, url, self.ms(180))
            resize = shop.resize_image.options(after=fetch)
            sizes = [resize.spec(product, width, self.ms(120)) for width in WIDTHS]
            publish = shop.publish_product.options(after=sizes).spec(product, self.ms(60))
            self.add(at, fetch, *sizes, publish)
            # Every product enqueues it; while one is waiting or running, its key keeps it unique.
            self.add(at, shop.rebuild_search_index.options(key="search-index").spec(self.ms(400)))

    def orders(self, steps: int) -> None:
        for number in range(max(1, steps // len(STEPS))):
            customer, at = self.chance.choice(CUSTOMERS), self.when() * 0.85
            jobs = [
                shop.orders.spec(customer=customer, step=number * 10 + step, what=what, ms=self.ms(60))
                for step, what in enumerate(STEPS)
            ]
            self.add(at, *jobs)

    def billing(self, charges: int, invoices: int) -> None:
        for order, expired in self.spread(charges, 3):
            card, at = "expired" if expired else "valid", self.when() * (0.5 if expired else 0.95)
            self.add(at, shop.charge_card.spec(order, self.chance.randint(500, 20_000), card, self.ms(150)))
        for order, huge in self.spread(invoices, 1):
            at = self.when() * (0.4 if huge else 0.9)
            self.add(at, shop.render_invoice.spec(order, "40-gigapixels.tiff" if huge else "logo.png"))

    def reports(self, counts: int) -> None:
        """Add reports and stock counts. The reports are still running when the worker is killed."""
        for region in REPORTS:
            self.add(0.3 * self.busy, shop.sales_report.spec(region, 900))
        for number, hangs in self.spread(counts, 2):
            warehouse = "W-13" if hangs else f"W-{20 + number}"
            self.add(self.when() * 0.6, shop.count_stock.spec(warehouse, self.ms(80)))

    def texts(self, count: int) -> None:
        """Add text messages, all at the same time. They are more than the provider accepts per second."""
        jobs = [shop.send_sms.spec(f"+49 30 55{number:05}", self.ms(40)) for number in range(count)]
        self.add(0.1 * self.busy, *jobs)

    def mail(self, jobs: int) -> None:
        """Add the remaining jobs: a newsletter, and mail to single customers.

        Password resets have a higher priority.
        """
        send = shop.send_email
        for number, wrong in self.spread(4, 3):
            host = "exampel.con" if wrong else "example.com"
            self.add(self.when() * 0.6, send.spec(f"new-{number}@{host}", "welcome", self.ms(90)))
        for number in range(max(4, jobs // 40)):
            soon = send.options(delay=self.chance.uniform(0.1, 0.3) * self.busy)
            spec = soon.spec(f"cart-{number}@example.com", "your cart is waiting", self.ms(90))
            self.add(self.when() * 0.5, spec, cancel=number % 4 == 0)
        for number in range(max(2, jobs // 50)):
            reset = send.options(priority=9).spec(f"user-{number}@example.com", "password reset", self.ms(90))
            self.add(self.when(), reset)
        left = max(10, jobs - self.count)
        parts = max(1, min(left // 10, 20))
        for part in range(parts):
            bulk = [
                send.spec(f"reader-{number}@example.com", "newsletter", self.ms(90))
                for number in range(part, left, parts)
            ]
            self.add(self.busy * part / parts, *bulk)
