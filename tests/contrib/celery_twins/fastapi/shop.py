"""The shop of examples/fastapi with Celery: an order commits with an entry of an outbox, from which beat sends it.

Run it: uvicorn shop:api, and a worker: millrace worker --app shop:queue
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from millrace.contrib.celery import Celery

queue = Celery("shop", broker="sqla+sqlite:///queue.db", backend="db+sqlite:///queue.db")
engine = create_engine("sqlite:///shop.db")


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    product: Mapped[str]
    receipt: Mapped[str | None]


class Outbox(Base):
    __tablename__ = "outbox"

    order_id: Mapped[int] = mapped_column(primary_key=True)


@queue.task(bind=True, max_retries=2, acks_late=True, time_limit=30)
def send_receipt(self, order_id: int) -> None:
    try:
        with Session(engine) as session, session.begin():
            order = session.get_one(Order, order_id)
            order.receipt = f"Thank you for the {order.product}."
    except Exception as error:
        raise self.retry(exc=error, countdown=[1, 10, 10][self.request.retries])


@queue.task
def send_outbox() -> None:
    with Session(engine) as session, session.begin():
        for entry in session.scalars(select(Outbox)):
            send_receipt.delay(entry.order_id)
            session.delete(entry)


queue.conf.beat_schedule = {"outbox": {"task": send_outbox.name, "schedule": 1.0}}


@asynccontextmanager
async def tables(api: FastAPI) -> AsyncIterator[None]:
    Base.metadata.create_all(engine)
    yield
    engine.dispose()


api = FastAPI(lifespan=tables)


@api.post("/orders")
def create_order(product: str) -> dict[str, int]:
    with Session(engine) as session, session.begin():
        order = Order(product=product)
        session.add(order)
        session.flush()
        session.add(Outbox(order_id=order.id))
        return {"order": order.id}


@api.get("/orders/{order_id}")
def read_order(order_id: int) -> dict[str, str | None]:
    with Session(engine) as session:
        order = session.get(Order, order_id)
        if order is None:
            raise HTTPException(404)
        return {"product": order.product, "receipt": order.receipt}
