"""Who calls, and who may do what to which ride. Pure: no I/O.

The table in docs/security.md says the same; a test reads it and asks the API.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from api.problems import Kind, refused


class Caller(NamedTuple):
    """Who sent a request."""

    subject: str
    """The same in all sessions of one caller. It owns the rides that it books, and the idempotency keys it chooses."""
    staff: bool
    """Whether the caller works for the company."""


class Action(StrEnum):
    """What callers ask for. A change of a ride has the name of its ``action``."""

    BOOK = "book"
    LIST = "list"
    READ = "read"
    ACCEPT = "accept"
    START = "start"
    COMPLETE = "complete"
    CANCEL = "cancel"
    CHANGE_DESTINATION = "changeDestination"
    SIMULATE = "simulate"


_OF_STAFF: Final = frozenset({Action.ACCEPT, Action.START, Action.COMPLETE, Action.CHANGE_DESTINATION, Action.SIMULATE})
"""Changing the destination is among them because it sets the price."""
_OF_OWNERS: Final = frozenset({Action.LIST, Action.READ, Action.CANCEL})


def refusal(caller: Caller, action: Action, owner: str | None) -> Kind | None:
    """Decide whether a caller may do something; return None, or the problem that the caller is told.

    Args:
        caller: who asks.
        action: what for.
        owner: the subject that booked the ride in question; None for a ride that nobody booked through the API.
    """
    if caller.staff:
        return None
    if action in _OF_STAFF:
        return Kind.FORBIDDEN
    return Kind.UNKNOWN_RIDE if action in _OF_OWNERS and owner != caller.subject else None


def require(caller: Caller, action: Action) -> None:
    """Refuse what the caller may not do to any ride, not even to its own.

    Raises:
        HttpProblemError: 403.
    """
    if refusal(caller, action, caller.subject):
        raise refused(Kind.FORBIDDEN, f"{action} is for staff")


def caller_of(event: Mapping[str, Any], *, staff_group: str, everyone: bool) -> Caller:
    """Return who sent a request, by what its authorizer says.

    Args:
        event: the request as API Gateway hands it over, in payload format 2.0.
        staff_group: what makes a caller staff: of a token, a group in ``cognito:groups`` or a scope; of a signed
            request, the IAM role. Empty, nobody is staff.
        everyone: whether everybody is staff, and a caller without a name is let in.

    Raises:
        HttpProblemError: 403, because the caller has no name.
    """
    context = event["requestContext"]
    match context.get("authorizer"):
        case {"jwt": {"claims": {"sub": str(subject)} as claims}} if subject:
            name, groups = f"jwt:{subject}", _groups(claims)
        # All users of an identity pool assume the same role: what tells them apart is their identity.
        case {"iam": {"cognitoIdentity": {"identityId": str(identity)}} as iam} if identity:
            name, groups = f"identity:{identity}", _role(iam, context.get("accountId"))
        case {"iam": {"userId": str(user)} as iam} if user.partition(":")[0]:
            name = f"iam:{user.partition(':')[0]}"  # behind the colon is the name of a role's session
            groups = _role(iam, context.get("accountId"))
        case _ if everyone:
            return Caller("anyone", staff=True)
        case _:
            raise refused(Kind.FORBIDDEN, "the token has no sub, or the signature no userId: the caller has no name")
    return Caller(name, staff=everyone or staff_group in groups)


def _groups(claims: Mapping[str, Any]) -> list[str]:
    """Return the groups and scopes of a token. API Gateway writes a list of groups as ``[one two]``.

    Neither has blanks in it. Claims of other issuers are not read: a group called "not staff" would be two of them.
    """
    groups = claims.get("cognito:groups", "")
    listed = groups if isinstance(groups, list) else str(groups).removeprefix("[").removesuffix("]").split()
    return [*listed, *str(claims.get("scope", "")).split()]


def _role(iam: Mapping[str, Any], account: object) -> list[str]:
    """Return the IAM role that a caller of this account has assumed: arn:aws:sts::ACCOUNT:assumed-role/ROLE/SESSION."""
    match str(iam.get("userArn", "")).split(":"):
        case ["arn", _, "sts", "", str(number), resource] if number == account:
            kind, role, *_ = [*resource.split("/"), ""]
            return [role] if kind == "assumed-role" and role else []
        case _:
            return []
