import pytest

from millrace import App, InvalidInput, backoff


def test_backoff_takes_durations_as_people_write_them():
    policy = backoff("5s", factor=3, maximum="10m", jitter=0)

    assert [policy.delay(failures, 0.5) for failures in range(6)] == [5_000, 15_000, 45_000, 135_000, 405_000, 600_000]


def test_backoff_without_arguments_is_the_default_policy():
    app = App()

    @app.task
    def plain() -> None: ...

    assert plain.options.retry == backoff()


@pytest.mark.parametrize("initial", [-1, float("nan"), float("inf"), "soon"])
def test_a_backoff_that_makes_no_sense_is_refused(initial):
    with pytest.raises(InvalidInput):
        backoff(initial)


async def test_pausing_two_lanes_at_once_pauses_both():
    app = App()
    queue = app.queue("pool")
    await queue.set(lanes=4)

    await queue.pause(lane=1)
    await queue.pause(lane=3)
    await queue.resume(lane=1)

    assert (await queue.settings()).paused_lanes == (3,)
    with pytest.raises(InvalidInput, match="lane 4"):
        await queue.pause(lane=4)
