"""The choices of parameters for which tests look at the transformed template.

Any two values of two parameters meet in one of them.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations, islice, product
from typing import Final

from tools.transformed import ROLES, source

type Choice = dict[str, str]
type Value = tuple[str, int]
"""A value: what it is of, and its place among the options."""
type Pair = tuple[Value, Value]

_SECRET: Final = {
    "PaymentGatewaySecretArn": "arn:aws:secretsmanager:us-east-1:123456789012:secret:gateway-AbCdEf"
}
_OTHER: Final = {"PaymentGatewayUrl": "https://gateway.example"}
_STRIPE: Final = {"PaymentGatewayUrl": "https://api.stripe.com"}
TOGETHER: Final[Mapping[str, tuple[Choice, ...]]] = {
    "Role": (
        *ROLES.values(),
        ROLES["primary"] | {"GlobalEndpoint": "absent"},
        ROLES["secondary"] | {"GlobalEndpointId": ""},
    ),
    "PaymentGatewayUrl": ({}, _OTHER, _OTHER | _SECRET, _STRIPE | _SECRET),
    "JwtIssuer": ({}, {"JwtIssuer": "https://issuer.example", "JwtAudience": "carride"}),
    "AlarmEmail": ({}, {"AlarmEmail": "you@example.com"}),
    "StaffGroup": ({}, {"StaffGroup": "drivers"}),
    "PermissionsBoundaryArn": (
        {},
        {"PermissionsBoundaryArn": "arn:aws:iam::123456789012:policy/carride-boundary"},
    ),
}
"""Options of parameters without allowed values, and of those that rules or roles tie together."""
CHOICES: Final = 40
"""At most so many choices; fewer are enough for every pair."""
SEED: Final = 23
TRIES: Final = 20
"""How many random choices are compared for the one that brings most new pairs."""


@cache
def options() -> Mapping[str, tuple[Choice, ...]]:
    """Return what to choose from: of each parameter or group, the values of each option."""
    found = dict(TOGETHER)
    for name, spec in source()["Parameters"].items():
        if name not in found and name != "GlobalEndpoint":  # which goes with the role
            allowed = spec.get("AllowedValues", ())
            if allowed:
                found[name] = tuple({name: str(value)} for value in allowed)
    return found


@cache
def defaults() -> Choice:
    """Return the default of each parameter."""
    return {name: str(spec["Default"]) for name, spec in source()["Parameters"].items()}


def every_choice() -> Iterator[Choice]:
    """Yield choices of parameters, the same ones in each run, in which all pairs of options meet.

    Each names the value of every parameter that it is about.
    """
    for chosen in islice(_choices(), CHOICES):
        found = dict(defaults())
        for name, place in chosen.items():
            found |= options()[name][place]
        yield found


def pairs() -> Iterator[Pair]:
    """Yield every two options of two parameters or groups."""
    for one, other in combinations(options(), 2):
        places = product(range(len(options()[one])), range(len(options()[other])))
        yield from (((one, first), (other, second)) for first, second in places)


@cache
def _choices() -> tuple[Mapping[str, int], ...]:
    """Return choices, by the places of their options, in which all pairs meet.

    The first one is the defaults.
    """
    chance = random.Random(SEED)  # noqa: S311 - a sample, not a secret
    found: list[Mapping[str, int]] = [
        {name: _default_of(values) for name, values in options().items()}
    ]
    missing = _without(dict.fromkeys(pairs()), found[0])
    while missing:
        tried = [_grown(missing, chance) for _ in range(TRIES)]
        best = min(tried, key=lambda choice: len(_without(missing, choice)))
        missing = _without(missing, best)
        found.append(best)
    return tuple(found)


def _without(missing: Mapping[Pair, None], choice: Mapping[str, int]) -> dict[Pair, None]:
    """Return the pairs that a choice does not have."""
    ordered = [(name, choice[name]) for name in options()]
    met = set(combinations(ordered, 2))
    return {pair: None for pair in missing if pair not in met}


def _default_of(values: Sequence[Choice]) -> int:
    """Return the place of the option that the defaults are."""
    return next(place for place, each in enumerate(values) if each.items() <= defaults().items())


def _grown(missing: Mapping[Pair, None], chance: random.Random) -> dict[str, int]:
    """Return a choice that has a missing pair, and then what brings most missing pairs."""
    found = dict(chance.choice([*missing]))

    def gain(value: Value) -> int:
        return sum(_pair(each, value) in missing for each in found.items())

    for name in chance.sample([*options()], len(options())):
        if name not in found:
            values = [(name, place) for place in range(len(options()[name]))]
            chance.shuffle(values)
            _, found[name] = max(values, key=gain)
    return found


def _pair(one: Value, other: Value) -> Pair:
    """Return two values in the order of the options."""
    order = [*options()]
    return (one, other) if order.index(one[0]) < order.index(other[0]) else (other, one)


def label(choice: Choice) -> str:
    """Return a test id for a choice: what differs from the defaults."""
    allowed = {name for name, spec in source()["Parameters"].items() if "AllowedValues" in spec}
    different = {name: text for name, text in choice.items() if text != defaults()[name]}
    return "-".join(text if name in allowed else name for name, text in different.items())
