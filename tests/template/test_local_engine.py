"""What the local engine leaves out of the template."""

from engine.ignored import ignored
from tools.transformed import stack


def test_the_application_relies_on_nothing_that_is_ignored() -> None:
    """Its tables' TTL and the bus's log are all that it asks for in vain."""
    found = {each.property for each in ignored({"Resources": dict(stack().resources)})}
    assert found == {"TimeToLiveSpecification", "LogConfig"}
