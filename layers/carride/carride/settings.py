"""Typed settings, read from the environment when a function starts."""

import os
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Struct

from carride.decoding import FieldError, shaped

ACCOUNT_IS_MEANT: Final = "SAM_LOCAL_MAY_USE_ACCOUNT"
"""Set to "yes" by `make local-env` for a stack that was named."""


class SettingsError(Exception):
    """Raised for a missing or invalid environment variable; the message says what to do."""


def from_environment[S: Struct](
    settings: type[S], environment: Mapping[str, str] | None = None
) -> S:
    """Return a function's settings, by default from the process's environment.

    The field ``car_table`` is read from ``CAR_TABLE``; a field with a default is optional.

    Raises:
        SettingsError: a variable is missing or invalid.
    """
    variables = os.environ if environment is None else environment
    _refuse_an_account_by_accident(variables)
    given = {}
    for field in msgspec.structs.fields(settings):
        name = field.encode_name.upper()
        if name in variables:
            given[field.encode_name] = variables[name]
    try:
        return shaped(given, settings, strict=False)
    except FieldError as error:
        name = error.field.upper()
        problem = error.problem if error.field in given else "it is not set"
        raise SettingsError(
            f"{name}: {problem}. Set it under the function's Environment in template.yaml; "
            f"outside of Lambda, export {name}."
        ) from error


def _refuse_an_account_by_accident(variables: Mapping[str, str]) -> None:
    """Raise SettingsError in a container of `sam local` that would reach an account nobody named.

    The SAM CLI gives the container the credentials of whoever calls it.
    """
    is_container = bool(variables.get("AWS_SAM_LOCAL"))
    if not is_container or variables.get("AWS_ENDPOINT_URL"):
        return
    if variables.get(ACCOUNT_IS_MEANT) == "yes":
        return
    raise SettingsError(
        "AWS_ENDPOINT_URL: it is not set, so this container would use the AWS account of your "
        "credentials. For the local stack, run `make demo ARGS=--keep`, then `make local-env`, and "
        'invoke again. For a stack on AWS, run `make local-env ARGS="--stack NAME"`.'
    )
