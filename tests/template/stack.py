"""The choices of parameters for which tests look at the transformed template."""

import random
from collections.abc import Iterator
from functools import cache
from typing import Final

from tools.transformed import ROLES, source

SWITCHES: Final[dict[str, tuple[str, ...]]] = {
    "PaymentGatewayUrl": ("", "https://gateway.example", "https://api.stripe.com"),
    "PaymentGatewaySecretArn": (
        "",
        "arn:aws:secretsmanager:us-east-1:123456789012:secret:gateway-AbCdEf",
    ),
    "AlarmEmail": ("", "you@example.com"),
    "StaffGroup": ("carride-staff", "drivers"),
    "JwtIssuer": ("", "https://issuer.example"),
    "PermissionsBoundaryArn": ("", "arn:aws:iam::123456789012:policy/carride-boundary"),
}
"""Parameters without allowed values that matter by having a value or not."""
COMPANIONS: Final = {"JwtAudience": "carride"}
"""Parameters that others require; they change nothing by themselves."""
CHOICES: Final = 20
SEED: Final = 5


@cache
def options() -> dict[str, list[str]]:
    """Return the values to choose from: every allowed one, of numbers the first and the last."""
    found = {name: list(values) for name, values in SWITCHES.items()}
    for name, spec in source()["Parameters"].items():
        allowed = [str(value) for value in spec.get("AllowedValues", ())]
        if allowed and name != "GlobalEndpoint":  # which follows from the role
            found[name] = [allowed[0], allowed[-1]] if spec["Type"] == "Number" else allowed
    return found


@cache
def defaults() -> dict[str, str]:
    """Return the default of each parameter that has one."""
    return {
        name: str(spec["Default"])
        for name, spec in source()["Parameters"].items()
        if "Default" in spec
    }


def every_choice() -> Iterator[dict[str, str]]:
    """Yield random choices of parameters, the same ones in each run, which cover every value."""
    chance = random.Random(SEED)  # noqa: S311 - a sample, not a secret
    for _ in range(CHOICES):
        chosen = {name: chance.choice(values) for name, values in options().items()}
        yield COMPANIONS | chosen | ROLES[chosen["Role"]]


def label(choice: dict[str, str]) -> str:
    """Return a test id for a choice: the values that differ from the defaults."""
    words = {name: name if name in SWITCHES else choice[name] for name in options()}
    return "-".join(word for name, word in words.items() if choice[name] != defaults()[name])
