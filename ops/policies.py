"""How the functions protect their operations: the policy of each name with which keys begin.

Each policy is a value of its function's domain module. Operators' tools read them here.
"""

from collections.abc import Mapping
from typing import Final

import assignments
import payments
import settlement
from api import policies as api
from carride import consumer, history
from carride_idempotency import Policy
from carride_idempotency.operators.choosing import consumer_of
from ops.audit.evidence import CONSUMERS, HISTORY, RECORDS

_LEASE_S: Final = 30.0
"""Stands for the lease that payment's function is set to, which no tool needs."""

POLICIES: Final[Mapping[str, Policy]] = {
    **dict.fromkeys((each.name for each in CONSUMERS), consumer.POLICY),
    "ride-history": history.POLICY,
    "dispatch": assignments.POLICY,
    "payment": payments.payment_policy(_LEASE_S),
    "reconciler": settlement.POLICY,
    "carride-api": api.RIDES,
    "carride-api-simulate": api.SIMULATIONS,
    "carride-api-simulation-lock": api.SIMULATION_LOCK,
}
"""By what keys begin with: the consumers' names, and those of the API, which stores its answers.

A consumer without a policy of its own has that of `carride.consumer`.
"""


MOST_ATTEMPTS: Final = {name: policy.max_attempts for name, policy in POLICIES.items()}


def records_of(key: str) -> str:
    """Return the logical id of the table that holds the record of a key."""
    return HISTORY if consumer_of(key) == "ride-history" else RECORDS
