"""Bookings: a service that writes events with its changes, and handles the payments of another context.

Run it with ``uvicorn service:app --port 8000``.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import UUID

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, ValidationError
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sea_mq_worker.producer import Event, enqueue
from sea_mq_worker.producer.once import once

URL = make_url(os.environ["SEA_MQ_DATABASE_URL"]).set(drivername="postgresql+asyncpg")
engine = create_async_engine(URL)
transaction = async_sessionmaker(engine, expire_on_commit=False).begin


class Base(DeclarativeBase):
    pass


class Booking(Base):
    __tablename__ = "bookings"

    id: Mapped[int] = mapped_column(primary_key=True)
    guest: Mapped[str]
    arrives: Mapped[date]
    paid: Mapped[bool] = mapped_column(default=False)


class NewBooking(BaseModel):
    guest: str
    arrives: date


class Message(BaseModel):
    """The body of the worker's request."""

    message_id: UUID
    subject: str
    event_type: str
    event_version: int
    occurred_at: datetime
    correlation_id: UUID | None
    causation_id: UUID | None
    payload: Any


class Payment(BaseModel):
    """The payload of ``payment.received``."""

    booking: int


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()


app = FastAPI(title="Bookings", lifespan=lifespan)


@app.post("/bookings", status_code=201)
async def book(new: NewBooking) -> dict[str, int]:
    """Store a booking and its events in one transaction: both are committed, or neither."""
    async with transaction() as session:
        booking = Booking(guest=new.guest, arrives=new.arrives)
        session.add(booking)
        await session.flush()
        await enqueue(session, *events_of(booking))
    return {"booking": booking.id}


def events_of(booking: Booking) -> list[Event]:
    """Return the event of a new booking, and a reminder that is published a day before the arrival."""
    day_before = datetime.combine(booking.arrives, time(), UTC) - timedelta(days=1)
    return [event_of(booking, "booking.made"), event_of(booking, "booking.reminder", day_before)]


def event_of(booking: Booking, event_type: str, available_at: datetime | None = None) -> Event:
    return Event(
        aggregate_type="booking",
        aggregate_id=str(booking.id),
        event_type=event_type,
        payload={"booking": booking.id, "guest": booking.guest},
        available_at=available_at,
    )


@app.get("/bookings/{number}")
async def show(number: int) -> dict[str, object]:
    async with transaction() as session:
        booking = await booking_of(number, session, missing=404)
        return {"guest": booking.guest, "paid": booking.paid}


@app.post("/handle")
async def handle(message: Message) -> dict[str, str]:
    """Let a message have its effect once; 409: it had it before, 422: it can never have one."""
    async with transaction() as session, once(session, message.message_id) as first:
        if not first:
            raise HTTPException(409, "handled before")
        if message.event_type == "payment.received":
            await receive_payment(message.payload, session)
    return {"result": "handled"}


async def receive_payment(payload: object, session: AsyncSession) -> None:
    try:
        payment = Payment.model_validate(payload)
    except ValidationError as error:
        raise HTTPException(422, "this is no payment") from error
    booking = await booking_of(payment.booking, session, missing=422)
    booking.paid = True


async def booking_of(number: int, session: AsyncSession, *, missing: int) -> Booking:
    booking = await session.get(Booking, number)
    if booking is None:
        raise HTTPException(missing, f"there is no booking {number}")
    return booking
