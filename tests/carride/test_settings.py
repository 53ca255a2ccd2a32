from typing import Literal

import pytest
from msgspec import Struct

from carride.settings import SettingsError, from_environment


class Settings(Struct, frozen=True):
    """The environment of some function."""

    car_table: str
    batch_size: int = 10
    capacity: Literal["on-demand", "provisioned"] = "on-demand"


def test_settings_come_from_the_variables_of_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field is read from the variable of the same name, in the field's type; a default fills in a missing one."""
    variables = {"CAR_TABLE": "cars", "BATCH_SIZE": "5", "CAPACITY": "provisioned", "OTHER": "x"}
    assert from_environment(Settings, variables) == Settings("cars", 5, "provisioned")
    monkeypatch.setenv("CAR_TABLE", "cars")
    assert from_environment(Settings) == Settings("cars")


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "CAR_TABLE: it is not set. Set it under the function's Environment in template.yaml"),
        ({"CAR_TABLE": "cars", "BATCH_SIZE": "many"}, "BATCH_SIZE: Expected `int`, got `str`"),
        ({"CAR_TABLE": "cars", "CAPACITY": "yes"}, "CAPACITY: Invalid enum value 'yes'"),
    ],
)
def test_a_variable_that_is_missing_or_wrong_names_itself(environment: dict[str, str], message: str) -> None:
    """The error says which variable it is, what is wrong with it, and what to do."""
    with pytest.raises(SettingsError) as failure:
        from_environment(Settings, environment)
    assert str(failure.value).startswith(message)
    assert "export" in str(failure.value)
