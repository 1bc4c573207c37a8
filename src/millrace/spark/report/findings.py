"""Writes the main result of each section of a report as a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.spark.report import formats
from millrace.spark.report.analytics_model import Analytics, Forecast, ObjectiveFigures
from millrace.spark.report.formats import count, length, percent, step_name
from millrace.spark.report.model import Failures, Fairness, Lengths, Report, Tasks, WorkerTable
from millrace.spark.report.period import Period

UNEVEN = 0.8  # below this evenness, groups count as treated unequally


def throughput(report: Report) -> str:
    period = report.period
    sums = _sums([queue.completed_at for queue in report.queues])
    if period is None or not any(sums):
        return "No job was completed in this period."
    peak = max(range(len(sums)), key=sums.__getitem__)
    when = formats.step_label(period.starts[peak], period.step)
    return f"{_jobs(sum(sums))} completed; the busiest {step_name(period.step)} saw {count(sums[peak])} ({when})."


def lengths(what: Lengths, period: Period | None, verb: str) -> str:
    if what.in_all is None or period is None:
        return f"No job {verb} in this period."
    every = what.in_all
    text = f"Half of all runs {verb} at most {length(every.p50)}, 95 % at most {length(every.p95)}."
    known = [(one.p95, n) for n, one in enumerate(what.over_time) if one is not None]
    worst, place = max(known, default=(0.0, 0))
    if worst > 3 * every.p50 and worst > every.p95:
        text += (
            f" The worst was {formats.step_label(period.starts[place], period.step)}, with a p95 of {length(worst)}."
        )
    return text


def failures(found: Failures, period: Period | None) -> str:
    retries, deaths = sum(found.retries_at), sum(found.deaths_at)
    if period is None or not (retries or deaths):
        return "Nothing failed in this period."
    text = f"{_times(retries, 'run')} tried again; {_jobs(deaths)} died." if deaths else ""
    text = text or f"{_times(retries, 'run')} retried, and no job died."
    sums = _sums([found.retries_at, found.deaths_at])
    peak = max(range(len(sums)), key=sums.__getitem__)
    share = sums[peak] / sum(sums)
    if share >= 0.1 and len([one for one in sums if one]) > 4:
        text += f" {percent(share)} of it happened {formats.step_label(period.starts[peak], period.step)}."
    return text


def workers(found: WorkerTable) -> str:
    if not found.busiest:
        return "No worker ended a run in this period."
    number = len(found.busiest) + found.others
    first = found.busiest[0]
    if number == 1:
        return f"One worker, {first.name}, did all the work: {length(first.busy)} of it."
    return f"{number} workers; {first.name} did the most, {percent(first.share)} of the work."


def tasks(found: Tasks) -> str:
    if not found.slowest:
        return "No run ended in this period."
    first = found.slowest[0]
    total = sum(task.total for task in found.slowest) + found.others_total
    share = first.total / total if total else 0.0
    worst = max(found.slowest, key=lambda task: task.times.p95)
    text = f"{first.task} took {percent(share)} of all running time."
    if worst is not first:
        text += f" The slowest single runs are those of {worst.task}: 5 % take longer than {length(worst.times.p95)}."
    return text


def fairness(found: Sequence[Fairness], known: bool) -> str:
    if not known:
        return "The lake was built without groups; run the pipeline with --groups to see how they fare."
    if not found:
        return "No job with a group ran in this period."
    worst = min(found, key=lambda queue: queue.evenness)
    several = len(worst.groups) + worst.others
    if several < 2:
        return "Each queue has one group only, so there is nothing to share."
    if worst.evenness >= UNEVEN:
        return "The groups of each queue got about the same time."
    first = worst.groups[0]
    return f"In {worst.queue}, {first.name} held {percent(first.share)} of the time that its {several} groups got."


def backlog(found: Analytics) -> str:
    total = sum(one.open_jobs for one in found.forecasts)
    if not total:
        return "No job is open at the end."
    text = f"{_jobs(total)} {'is' if total == 1 else 'are'} open at the end."
    growing = [one.queue for one in found.forecasts if one.trend == "growing"]
    if growing:
        text += f" The backlog grows in {_list(growing)}."
    draining = [one for one in found.forecasts if one.trend == "draining"]
    if draining:
        last = max(draining, key=lambda one: one.latest_at or 0)
        when = empty_in(last, found.period.until)
        text += f" At the rates of the last hours, {last.queue} is empty in {when}."
    return text


def empty_in(one: Forecast, end: int) -> str:
    """Return the time from `end` until the queue is empty, with its bounds: `2 h to 5 h`. It is empty without a
    forecast.
    """
    if one.earliest_at is None or one.latest_at is None:
        return ""
    earliest, latest = length(one.earliest_at - end), length(one.latest_at - end)
    return earliest if earliest == latest else f"{earliest} to {latest}"


def trends(found: Analytics) -> str:
    slower = [one for one in found.trends if one.trend == "slower"]
    faster = [one for one in found.trends if one.trend == "faster"]
    before = f"than in the {step_name(found.length)} before"
    if not found.trends:
        return (
            f"No task became clearly slower or faster {before}; {count(found.compared)} "
            f"{'task was' if found.compared == 1 else 'tasks were'} compared."
        )
    if not slower:
        return f"{_list([one.task for one in faster])} became faster {before}. No task became slower."
    worst = slower[0]
    text = f"{_list([one.task for one in slower])} became slower {before}."
    odds = f"in {worst.slower_share * 100:.0f} of 100 cases, rather than in 50"
    return f"{text} Of a new and an old run of {worst.task}, the new one takes longer {odds}."


def objectives(found: Sequence[ObjectiveFigures]) -> str:
    missed = [one for one in found if one.kept < one.target]
    if not missed:
        kept = "The objective was" if len(found) == 1 else f"All {len(found)} objectives were"
        text = f"{kept} met over 28 days."
    else:
        worst = min(missed, key=lambda one: one.budget_left)
        verb = "was" if len(missed) == 1 else "were"
        text = f"{len(missed)} of {len(found)} objectives {verb} missed over 28 days. "
        text += f"{worst.task}: {count(worst.missed)} of {_jobs(worst.jobs)} were too late or died."
    alerts = [one.task for one in found if one.alert]
    if alerts:
        text += f" The error budget of {_list(alerts)} burns too fast."
    return text


def causes(found: Analytics) -> str:
    new = sum(one.trend == "new" for one in found.causes)
    rising = len(found.causes) - new
    parts = [f"{count(new)} new {'cause' if new == 1 else 'causes'} of failure"] if new else []
    if rising:
        parts.append(f"{count(rising)} that {'is' if rising == 1 else 'are'} much more frequent than before")
    return f"In the last {step_name(found.length)}: {', and '.join(parts)}."


def cost(found: Analytics) -> str:
    first = found.task_costs[0]
    failed = sum(one.failed for one in found.task_costs)
    busy = sum(one.busy for one in found.task_costs)
    text = (
        f"In the last {step_name(found.length)}, {first.name} took {percent(first.share)} of the time of all handlers."
    )
    if busy and failed / busy >= 0.01:
        text += f" {percent(failed / busy)} of the time went to runs that failed."
    return text


def audit(report: Report) -> str:
    found = report.audit
    if found is None:
        return "The audit was left out."
    if found.sound:
        return "All guarantees hold: no job was lost, none was held twice, every transition was legal."
    named = f", in {_jobs(len(found.jobs))}" if found.jobs else ""
    return f"Conservation is broken: {count(found.broken)} findings{named}."


def _sums(lists: Sequence[Sequence[int]]) -> list[int]:
    return [sum(values) for values in zip(*lists, strict=True)] if lists else []


def _jobs(number: int) -> str:
    return "1 job" if number == 1 else f"{count(number)} jobs"


def _times(number: int, noun: str) -> str:
    return f"1 {noun} failed and was" if number == 1 else f"{count(number)} {noun}s failed and were"


def _list(names: Sequence[str], most: int = 3) -> str:
    shown = list(names[:most]) + ([f"{len(names) - most} more"] if len(names) > most else [])
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
