"""A shop on FastAPI and SQLAlchemy: an order and the job that sends its receipt commit together.

Run it: uvicorn shop:api
Then order something: curl -X POST "http://127.0.0.1:8000/orders?product=tea"
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from millrace import App
from millrace.contrib.fastapi import lifespan
from millrace.web import application

app = App("sqlite:///shop.db")
engine = create_engine("sqlite:///shop.db")


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    product: Mapped[str]
    receipt: Mapped[str | None]


@app.task(retry=["1s", "10s"], timeout="30s")
def send_receipt(order_id: int) -> None:
    with Session(engine) as session, session.begin():
        order = session.get_one(Order, order_id)
        order.receipt = f"Thank you for the {order.product}."


@asynccontextmanager
async def tables(api: FastAPI) -> AsyncIterator[None]:
    Base.metadata.create_all(engine)
    yield
    engine.dispose()


api = FastAPI(lifespan=lifespan(app, inner=tables, worker=app.worker))
api.mount("/queue", application(app))  # the dashboard, for this machine


@api.post("/orders")
def create_order(product: str) -> dict[str, int]:
    with Session(engine) as session, session.begin():
        order = Order(product=product)
        session.add(order)
        session.flush()
        send_receipt.options(within=session).sync.enqueue(order.id)
        return {"order": order.id}


@api.get("/orders/{order_id}")
def read_order(order_id: int) -> dict[str, str | None]:
    with Session(engine) as session:
        order = session.get(Order, order_id)
        if order is None:
            raise HTTPException(404)
        return {"product": order.product, "receipt": order.receipt}
