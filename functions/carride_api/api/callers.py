"""The callers of the API, and what they may do to which ride. Pure: no I/O.

The table of `routes` says who may do what. docs/security.md shows it; a test compares it with the
API.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

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


class Who(StrEnum):
    """Who may send a request, besides staff, who may send every one."""

    EVERY_CALLER = "every caller"
    OWNER = "the ride's owner"
    STAFF = "staff"


def refusal(caller: Caller, who: Who, owner: str | None) -> Kind | None:
    """Return the problem for which a request about a ride is refused; None if it is allowed.

    ``who`` may send the request. ``owner`` is the subject that booked the ride; None if it was not
    booked through the API.
    """
    if caller.staff or who is Who.EVERY_CALLER:
        return None
    if who is Who.STAFF:
        return Kind.FORBIDDEN
    return None if owner == caller.subject else Kind.UNKNOWN_RIDE


def require(caller: Caller, action: Action, who: Who) -> None:
    """Refuse (403) an action that the caller may not do even to its own rides."""
    if refusal(caller, who, caller.subject):
        raise refused(Kind.FORBIDDEN, f"{action} is for staff")


def caller_of(event: Mapping[str, Any], *, staff_group: str, everyone: bool) -> Caller:
    """Return the caller of a request in payload format 2.0, as API Gateway's authorizer reports it.

    A caller is staff if ``staff_group`` is a group or scope of its token, or its IAM role. If
    ``staff_group`` is empty, nobody is staff. With ``everyone``, every caller is, even one without
    a name.

    Raises:
        HttpProblemError: 403: the caller has no name.
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
    is_in_group = staff_group != "" and staff_group in groups
    return Caller(name, staff=everyone or is_in_group)


def _groups(claims: Mapping[str, Any]) -> list[str]:
    """Return the groups and scopes of a token.

    API Gateway writes a list of groups as ``[one two]``. So only Cognito's groups are read, which
    contain no blanks: a group "not staff" would become two.
    """
    groups = claims.get("cognito:groups", "")
    if not isinstance(groups, list):
        groups = str(groups).removeprefix("[").removesuffix("]").split()
    scopes = str(claims.get("scope", "")).split()
    return [*groups, *scopes]


def _role(iam: Mapping[str, Any], account: object) -> list[str]:
    """Return the IAM role of a caller from this account; empty if it has none.

    A session of a role has the ARN ``arn:aws:sts::ACCOUNT:assumed-role/ROLE/SESSION``.
    """
    match str(iam.get("userArn", "")).split(":"):
        case ["arn", _, "sts", "", str(number), resource] if number == account:
            session = resource.split("/")
        case _:
            return []
    match session:
        case ["assumed-role", str(role), *_] if role:
            return [role]
        case _:
            return []
