"""Settings from the environment."""

from typing import Final

import pytest
from msgspec import Struct

from carride.settings import ACCOUNT_IS_MEANT, SettingsError, from_environment


class Settings(Struct, frozen=True):
    """A function's environment."""

    car_table: str
    tries: int = 3


IN_SAM_LOCAL: Final = {"CAR_TABLE": "cars", "AWS_SAM_LOCAL": "true"}


def test_a_missing_variable_is_named() -> None:
    """The message says where to set it."""
    with pytest.raises(SettingsError, match="CAR_TABLE: it is not set"):
        from_environment(Settings, {})
    with pytest.raises(SettingsError, match="TRIES: "):
        from_environment(Settings, {"CAR_TABLE": "cars", "TRIES": "many"})


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"AWS_ENDPOINT_URL": ""},
        {"AWS_ENDPOINT_URL_DYNAMODB": "http://10.88.0.1:4566"},
        {ACCOUNT_IS_MEANT: ""},
    ],
    ids=str,
)
def test_a_container_of_sam_local_reaches_no_account_by_accident(variables: dict[str, str]) -> None:
    """Its credentials are those of whoever calls it, so it needs an endpoint for every service."""
    with pytest.raises(SettingsError, match="make local-env"):
        from_environment(Settings, IN_SAM_LOCAL | variables)


@pytest.mark.parametrize(
    "variables",
    [{"AWS_ENDPOINT_URL": "http://10.88.0.1:4566"}, {ACCOUNT_IS_MEANT: "yes"}],
    ids=str,
)
def test_an_endpoint_or_a_named_stack_is_a_choice(variables: dict[str, str]) -> None:
    """`make local-env` writes the one or the other."""
    assert from_environment(Settings, IN_SAM_LOCAL | variables) == Settings("cars")
