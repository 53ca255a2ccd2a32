"""The deployed template, for every choice of parameters."""

import pytest

from tests.template.stack import every_choice, label
from tools.transformed import Stack, stack


@pytest.fixture(
    scope="session", params=[pytest.param(choice, id=label(choice)) for choice in every_choice()]
)
def deployed(request: pytest.FixtureRequest) -> Stack:
    """Return the transformed template, for each choice of parameters in turn."""
    return stack(**request.param)
