"""`make chaos`: the worst mix of everything that can go wrong, and whether anything was lost or doubled in it.

Half of the events come twice, a third of the rides in disorder; events kill their consumers, poison fails at every attempt,
the payment gateway hangs, fails after charging, drops answers and forgets keys. For each seed a new stack of the real
template is put through it on the local engine. Then the whole archive is replayed, which has to change nothing.
"""

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import yaml

from carride.faults import Fault
from carride.simulation import Simulation, Spec
from idempotency import MemoryStore
from idempotency.stores import Store
from local.demo import Progress, publish, settle
from local.gateway import Books, GatewayServer, Troubles
from local.laptop import ROOT, Laptop, LaptopError, Stack
from local.partner import Partner, subscribe
from ops import audit, fleet, saga
from ops.witnesses import facts, witnesses

REPORT: Final = ROOT / ".demo" / "chaos.json"
TABLES: Final = ("RideTable", "AssignmentTable", "CarTable", "PaymentTable", "OutboxTable")
"""What a replay may not change."""

_DECLINED: Final = 0.05
_RETRY_DELAYS: Final = (1.0, 2.0)
_HOUR: Final = timedelta(hours=1)
_UNSOUND: Final = 1
_FAILED: Final = 2
_INTERRUPTED: Final = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """What is to go wrong, and how much is published."""

    rides: int = 500
    cars: int = 60
    duplicates: float = 0.5
    """Share of the facts."""
    out_of_order: float = 0.3
    """Share of the rides."""
    older: float = 0.1
    """Share of the events in the older envelope."""
    crashes: float = 0.05
    """Share of the facts that kill their consumers, once."""
    poison: float = 0.02
    """Share of the facts that fail their consumers, always."""
    gateway: float = 0.05
    """Share of the gateway's requests that go wrong."""

    def request(self, seed: int) -> dict[str, Any]:
        """Return what the simulator is asked for."""
        plain = Simulation(Spec(rides=self.rides, seed=seed), datetime.now(UTC))
        return {
            "rides": self.rides,
            "seed": seed,
            "duplicates": self.duplicates,
            "outOfOrder": self.out_of_order,
            "older": self.older,
            "crashes": round(self.crashes * len(plain)),
            "poison": round(self.poison * len(plain)),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one seed has come to."""

    seed: int
    seconds: float
    published: int
    distinct: int
    lost: Mapping[str, int]
    """By consumer."""
    doubled: Mapping[str, int]
    poison: int
    """Facts that have to be in the dead-letter queue of a consumer."""
    dead_letters: Mapping[str, int]
    """Messages in dead-letter queues, by reason."""
    unexpected: Sequence[str]
    """Facts in a dead-letter queue that are no poison, and poison that is in none."""
    gateway: Mapping[str, int]
    """What went wrong at the gateway."""
    changed_by_replay: Sequence[str]
    """Tables, and ledgers, that a replay of the archive has changed."""
    saga: saga.Saga

    @property
    def sound(self) -> bool:
        """Whether nothing was lost, doubled, broken, given up without need or changed by the replay."""
        return (
            self.saga.sound
            and not any(self.lost.values())
            and not any(self.doubled.values())
            and not self.unexpected
            and not self.changed_by_replay
        )

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON-ready values."""
        return asdict(self) | {"saga": self.saga.to_json(), "sound": self.sound}


# ── One seed ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def rehearse(laptop: Laptop, seed: int, mix: Mix, store: Store, progress: Progress, unprotected: str = "") -> Result:
    """Put a new stack through the mix, and return what came of it.

    Args:
        laptop: with the template built.
        seed: of everything that is left to chance.
        mix: what is to go wrong.
        store: where the partner's application remembers what it has done.
        progress: is told how far this has come.
        unprotected: the consumer whose decorator is taken off; empty, for none.
    """
    began = time.monotonic()
    books = Books(Troubles.mixed(mix.gateway, declined=_DECLINED), seed=seed)
    name = f"chaos-{seed}"
    with GatewayServer(books) as gateway, ExitStack() as running:
        with progress.step(f"seed {seed}: deploying"):
            template = running.enter_context(_without_decorator(unprotected)) if unprotected else None
            stack = laptop.deploy_fast(name, template, PaymentGatewayUrl=gateway.url)
            running.callback(laptop.delete_stack, name)
            fleet.seed(laptop.client("dynamodb"), stack.outputs["CarTableName"], mix.cars)
        partner = Partner(store, before=_stumble)
        sqs = laptop.client("sqs")
        queue = subscribe(laptop.client("sns"), sqs, stack.outputs["PartnersTopicArn"], f"partner-{seed}", visibility_s=2)
        request = mix.request(seed)
        with partner.polling(sqs, queue):
            with progress.step(f"seed {seed}: publishing {mix.rides:,} rides"):
                time_of_simulation = _publish(laptop, stack, request, progress)
            _settle(laptop, progress, f"seed {seed}: waiting until every event has reached its end")
            while partner.poll(sqs, queue):
                pass
            clients = audit.Clients(*(laptop.client(service) for service in ("dynamodb", "logs", "sqs")))
            ledger = audit.audit(clients, stack.outputs)
            ending = saga.check(witnesses(clients, stack.outputs, gateway.ledger()))
            letters = list(_letters(clients, stack))
            points = partner.points.copy()
            before = _snapshot(laptop, stack, gateway)
            _replay(laptop, stack, f"chaos-{seed}")
            _settle(laptop, progress, f"seed {seed}: replaying the archive")
            after = _snapshot(laptop, stack, gateway)
        told = {fact.id for fact in facts(clients.logs, stack.outputs["CarRideEventsLogGroupName"])}
        accounts = ledger.accounts
        return Result(
            seed=seed,
            seconds=round(time.monotonic() - began, 1),
            published=ledger.published,
            distinct=len(told),
            lost={name: account.lost for name, account in accounts.items()} | {"partner": len(told - set(points))},
            doubled={name: account.doubled for name, account in accounts.items()}
            | {"partner": sum(partner.points.values()) - len(partner.points)},
            poison=len(poison := set(_poison(request, time_of_simulation))),
            dead_letters=ledger_reasons(letters),
            unexpected=sorted(f"{consumer} {fact}" for consumer, fact in poison ^ {letter[:2] for letter in letters}),
            gateway=dict(books.met),
            changed_by_replay=[name for name in before if before[name] != after[name]],
            saga=ending,
        )
