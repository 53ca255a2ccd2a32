"""Reserves seats over HTTP with FastAPI; clients repeat a request with its Idempotency-Key."""

import os
from typing import Annotated

from fastapi import Depends, FastAPI
from pydantic import BaseModel

from carride_idempotency import (
    ASGIScope,
    AsyncOperation,
    Consumer,
    Policy,
    Update,
    open_store,
    request_operation,
)

consumer: Consumer = Consumer(
    "reservations",
    open_store(os.environ["IDEMPOTENCY_STORE"]),
    policy=Policy(max_attempts=30, lease=3.0, margin=0.1, clock_skew=0.1, reserve=0.2),
)


def passenger(scope: ASGIScope) -> str | None:
    """Return who sends a request."""
    names = [value.decode() for name, value in scope["headers"] if name == b"x-passenger"]
    return names[0] if names else None


app = FastAPI()
app.add_middleware(consumer.asgi, caller=passenger)


class Seat(BaseModel):
    """A seat of a train."""

    name: str


@app.get("/health")
async def health() -> dict[str, str]:
    """Say that the service runs."""
    return {"status": "up"}


@app.post("/seats", status_code=201)
async def reserve(
    seat: Seat, operation: Annotated[AsyncOperation, Depends(request_operation)]
) -> dict[str, str]:
    """Reserve one seat."""
    key = {"id": seat.name}
    operation.write(Update("Seats", key, "ADD reserved :one", values={":one": 1}))
    return {"id": operation.downstream_key}
