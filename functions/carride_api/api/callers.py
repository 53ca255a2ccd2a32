"""The callers of the API, and what they may do to which ride. Pure: no I/O.

The table in docs/security.md shows the same rules; a test compares it with the API.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from api.problems import Kind, refused


class Caller(NamedTuple):
    """Who sent a request."""

    subject: str  # the same in all sessions of a caller. It owns rides and idempotency keys.
    staff: bool  # whether the caller works for the company


class Action(StrEnum):
    """What a caller can ask for. A change of a ride is named like its ``action``."""

    BOOK = "book"
    LIST = "list"
    READ = "read"
    ACCEPT = "accept"
    START = "start"
    COMPLETE = "complete"
    CANCEL = "cancel"
    CHANGE_DESTINATION = "changeDestination"
    SIMULATE = "simulate"


_FOR_STAFF: Final = frozenset(
    {Action.ACCEPT, Action.START, Action.COMPLETE, Action.CHANGE_DESTINATION, Action.SIMULATE}
)
"""A change of the destination sets the price, so it is for staff."""
_FOR_OWNERS: Final = frozenset({Action.READ, Action.CANCEL})


def refusal(caller: Caller, action: Action, owner: str | None) -> Kind | None:
    """Return the problem for which an action on a ride is refused; None if it is allowed.

    ``owner`` is the subject that booked the ride; None if it was not booked through the API.
    """
    if caller.staff:
        return None
    if action in _FOR_STAFF:
        return Kind.FORBIDDEN
    return Kind.UNKNOWN_RIDE if action in _FOR_OWNERS and owner != caller.subject else None


def require(caller: Caller, action: Action) -> None:
    """Raise HttpProblemError (403) for an action that the caller may not do even to its own rides."""
    if refusal(caller, action, caller.subject):
        raise refused(Kind.FORBIDDEN, f"{action} is for staff")


def caller_of(event: Mapping[str, Any], *, staff_group: str, everyone: bool) -> Caller:
    """Return the caller of a request in payload format 2.0, as API Gateway's authorizer reports it.

    A caller is staff if ``staff_group``, unless it is empty, is a group or scope of its token, or
    its IAM role. If ``everyone`` is, callers without a name are too; else they are refused with
    HttpProblemError (403).
    """
    context = event["requestContext"]
    match context.get("authorizer"):
        case {"jwt": {"claims": {"sub": str(subject)} as claims}} if subject:
            name = f"jwt:{subject}"
            groups = _groups(claims)
        # All users of an identity pool assume the same role, but have different identities.
        case {"iam": {"cognitoIdentity": {"identityId": str(identity)}} as iam} if identity:
            name = f"identity:{identity}"
            groups = _role(iam, context.get("accountId"))
        case {"iam": {"userId": str(user)} as iam} if user.partition(":")[0]:
            name = f"iam:{user.partition(':')[0]}"  # the name of the session follows the colon
            groups = _role(iam, context.get("accountId"))
        case _ if everyone:
            return Caller("anyone", staff=True)
        case _:
            raise refused(
                Kind.FORBIDDEN,
                "the caller has no name: the token has no sub, or the signature no userId",
            )
    return Caller(name, staff=everyone or (staff_group != "" and staff_group in groups))


def _groups(claims: Mapping[str, Any]) -> list[str]:
    """Return the groups and scopes of a token.

    API Gateway writes a list of groups as ``[one two]``.

    Only Cognito's groups are read, because they contain no blanks: "not staff" would become two
    groups.
    """
    groups = claims.get("cognito:groups", "")
    listed = (
        groups
        if isinstance(groups, list)
        else str(groups).removeprefix("[").removesuffix("]").split()
    )
    return [*listed, *str(claims.get("scope", "")).split()]


def _role(iam: Mapping[str, Any], account: object) -> list[str]:
    """Return the IAM role of a caller from this account.

    Arn:aws:sts::ACCOUNT:assumed-role/ROLE/SESSION.
    """
    match str(iam.get("userArn", "")).split(":"):
        case ["arn", _, "sts", "", str(number), resource] if number == account:
            kind, role, *_ = [*resource.split("/"), ""]
            return [role] if kind == "assumed-role" and role else []
        case _:
            return []
