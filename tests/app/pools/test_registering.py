"""app.pool(…): how a pool is written down, and what is refused at once."""

import pytest

from millrace import App, Context, DeadJob, Emptied, InvalidInput, Pool, PoolTask, UnknownPool
from tests.app.pools.scene import burst

lone = App()


async def test_a_pool_decorates_its_handler(app: App):
    @app.pool("orders", lanes=3)
    async def handle(order: str) -> str:
        return order.upper()

    assert isinstance(handle, PoolTask)
    assert isinstance(handle.pool, Pool)
    assert (handle.pool.name, handle.pool.lanes, handle.pool.task) == ("orders", 3, handle)
    assert (handle.name, handle.options.queue) == ("orders", "orders")
    assert await handle("still a function") == "STILL A FUNCTION"


async def test_a_handler_may_be_given_to_a_pool_later(app: App):
    pool = app.pool("orders", lanes=1, max_attempts=7, timeout="10s")
    with pytest.raises(InvalidInput, match=r"'orders' has no handler yet.*@pool.handler"):
        _ = pool.task

    @pool.handler
    def handle(order: str) -> None: ...

    assert pool.task is handle
    assert (handle.options.max_attempts, handle.options.timeout) == (7, 10_000)
    with pytest.raises(InvalidInput, match="already has a handler"):
        pool.handler(lambda order: None)


async def test_an_unknown_pool_name_is_an_error_that_helps_w45(app: App):
    pool = app.pool("orders", lanes=1)

    assert app.pool_named("orders") is pool
    with pytest.raises(UnknownPool, match="Did you mean 'orders'") as refusal:
        app.pool_named("order")
    assert refusal.value.pool == "order"
    with pytest.raises(LookupError, match="Known are: orders"):
        app.pool_named("invoices")


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("a/b", {"lanes": 1}, "pool name"),
        ("orders", {"lanes": 0}, "lanes must be an integer from 1 to 4,096, not 0"),
        ("orders", {"lanes": 10**6}, "lanes must be"),
        ("orders", {"lanes": "many"}, "lanes must be"),
        ("orders", {"lanes": True}, "lanes must be"),
        ("orders", {"lanes": 1, "max_depth": 0}, "max_depth must be at least 1"),
        ("orders", {"lanes": 1, "max_depth": "deep"}, "max_depth must be at least 1"),
        ("orders", {"lanes": 1, "partition_by": "customer"}, "partition_by"),
        ("orders", {"lanes": 1, "queue": "other"}, "its own queue"),
    ],
)
def test_a_bad_pool_is_refused_when_it_is_written_down(name, options, says):
    with pytest.raises(InvalidInput, match=says):
        lone.pool(name, **options)

    assert lone.pools == {}


def test_a_bad_option_of_the_handler_is_refused_by_name():
    pool = App().pool("orders", lanes=1, tmeout=3)  # type: ignore[call-arg]

    with pytest.raises(InvalidInput, match="no option 'tmeout'"):
        pool.handler(lambda order: None)


def test_two_pools_or_a_pool_and_a_task_do_not_share_a_name():
    app = App()
    app.pool("orders", lanes=1)
    with pytest.raises(InvalidInput, match="already registered"):
        app.pool("orders", lanes=1)

    @app.task
    def invoices(): ...

    with pytest.raises(InvalidInput, match="'invoices' is already registered"):
        app.pool("invoices", lanes=1)(lambda order: None)


def test_a_hook_takes_what_it_is_told_of():
    pool = App().pool("orders", lanes=1)

    with pytest.raises(InvalidInput, match="takes a DeadJob, or a Context and a DeadJob"):
        pool.on_dead_letter(lambda: None)  # type: ignore[type-var]
    with pytest.raises(InvalidInput, match="takes an Emptied, or a Context and an Emptied"):
        pool.on_empty(lambda a, b, c: None)  # type: ignore[type-var]
    with pytest.raises(InvalidInput, match="is not a function"):
        pool.on_dead_letter("mourn")  # type: ignore[type-var]


async def test_a_hook_may_be_async_or_not_and_may_take_a_context(app: App):
    told: list[tuple[str, ...]] = []

    @app.pool("orders", lanes=1, max_attempts=1)
    async def handle(order: str) -> None:
        raise RuntimeError("no")

    @handle.pool.on_dead_letter
    def mourn(ctx: Context, job: DeadJob) -> None:
        told.append(("dead", ctx.task, job.args["order"]))

    class Note:
        async def __call__(self, lane: Emptied) -> None:
            told.append(("empty", lane.instance))

    handle.pool.on_empty(Note())
    await handle.enqueue("a")
    await burst(app)

    assert sorted(told) == [("dead", "orders.on_dead_letter", "a"), ("empty", "workerPool:orders:0")]


async def test_a_task_can_be_the_hook_of_a_pool(app: App):
    told = []

    @app.pool("orders", lanes=1)
    async def handle(order: str) -> None: ...

    @handle.pool.on_empty
    @app.task
    async def note(lane) -> None:
        told.append(lane)

    await handle.enqueue("a")
    await burst(app)

    assert [lane.processed for lane in told] == [1]


async def test_options_of_a_pool_refuse_what_makes_no_sense(app: App):
    @app.pool("orders", lanes=2)
    async def handle(order: str) -> None: ...

    with pytest.raises(InvalidInput, match="; remove queue="):
        handle.options(queue="other")
    with pytest.raises(InvalidInput, match="pass only one of them"):
        handle.options(partition="a", group="b")
    with pytest.raises(InvalidInput, match="no option 'colour'. Known are: .*partition.*wait_for_room"):
        handle.options(colour=3)  # type: ignore[call-arg]
    for key in (1.5, True, b"x", object()):
        with pytest.raises(InvalidInput, match="must be text, an integer, a UUID, or None"):
            handle.options(partition=key)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="wait_for_room"):
        handle.options(wait_for_room=-1)


@pytest.mark.parametrize("kind", ["on_dead_letter", "on_empty"])
async def test_a_pool_has_one_hook_of_a_kind_and_says_so(app: App, kind):
    hook = getattr(app.pool("orders", lanes=1), kind)
    hook(lambda told: None)
    with pytest.raises(InvalidInput, match=rf"pool 'orders' already has a function for {kind}"):
        hook(lambda told: None)
