"""Typed settings, read from the environment when a function starts."""

import os
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from carride.decoding import FieldError, shaped


class SettingsError(Exception):
    """Raised for a missing or invalid environment variable.

    The message names it and says what to do.
    """


def from_environment[S: Struct](
    settings: type[S], environment: Mapping[str, str] | None = None
) -> S:
    """Return a function's settings, by default from the process's environment.

    SettingsError names a bad variable.

    The field ``car_table`` is read from ``CAR_TABLE``; a field with a default is optional.
    """
    variables = os.environ if environment is None else environment
    given = {
        field.encode_name: variables[name]
        for field in msgspec.structs.fields(settings)
        if (name := field.encode_name.upper()) in variables
    }
    try:
        return shaped(given, settings, strict=False)
    except FieldError as error:
        name = error.field.upper()
        problem = error.problem if error.field in given else "it is not set"
        raise SettingsError(
            f"{name}: {problem}. Set it under the function's Environment in template.yaml; "
            f"outside of Lambda, export {name}."
        ) from error
