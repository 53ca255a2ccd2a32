"""What the refusal of a plan says that is not as it was shown."""

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carride_idempotency.record import COMPLETED, FAILED, IN_PROGRESS, QUARANTINED
from ops.stale import changes, short

UUID: Final = "37134231-8c22-525e-93f3-3e3838254b1c"
IDS: Final = [f"7a6d66ab-8c22-525e-93f3-3e383825{number:04}" for number in range(4)]

revisions = st.just("none") | st.builds(
    "{}, attempt {}, owner {}".format,
    st.sampled_from([COMPLETED, FAILED, IN_PROGRESS, QUARANTINED]),
    st.integers(0, 3),
    st.sampled_from(["99e7026f-8c22-525e-93f3-3e3838254b1c", "two"]),
)
verdicts = st.fixed_dictionaries(
    {"goes": st.booleans(), "why": st.sampled_from(["it runs", "it stays"])}
)
letters = st.dictionaries(
    st.sampled_from(IDS),
    st.fixed_dictionaries(
        {
            "verdict": verdicts,
            "record": revisions,
            "event": st.sampled_from(["a", "b"]),
        }
    ),
)


def redrive(chosen: dict[str, Any], *, target: str = "a") -> Any:
    """Return the plan of a redrive as it is bound."""
    return {
        "target": target,
        "letters": [
            {"id": name, "key": f"payment#{name}", "type": "CarAssigned", "ride": "order_1"} | each
            for name, each in chosen.items()
        ],
    }


@given(letters, letters)
def test_each_letter_that_has_changed_is_named_and_no_other(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    """By its own short id or that of its key; whoever owned the record is left out."""
    found = changes(redrive(before), redrive(after))
    told = "\n".join(found)
    changed = {name for name in IDS if before.get(name) != after.get(name)}
    named = {name for name in IDS if short(name) in told}
    assert named >= changed
    stayed = [
        [name for name in each if name in before and name in after] for each in (before, after)
    ]
    if stayed[0] == stayed[1]:
        assert named == changed
    assert "99e7026f" not in told
    assert bool(found) == (redrive(before) != redrive(after))


@pytest.mark.parametrize(
    ("then", "today"),
    [
        ("QUARANTINED, attempt 3, owner a", "FAILED, attempt 0, owner b"),
        ("FAILED, attempt 1, owner a", "FAILED, attempt 2, owner b"),
        ("FAILED, attempt 1, owner a", "IN_PROGRESS, attempt 2, owner b"),
        ("FAILED, attempt 1, owner a", "COMPLETED, attempt 2, owner b"),
        ("FAILED, attempt 1, owner a", "QUARANTINED, attempt 2, owner b"),
        ("FAILED, attempt 1, owner a", "none"),
        ("none", "COMPLETED, attempt 1, owner b"),
    ],
)
def test_a_change_of_a_record_is_one_sentence(then: str, today: str) -> None:
    """In the words of the protocol. Neither two letters of a key nor a verdict make it two."""
    both = []
    for revision, why in ((then, "before"), (today, "after")):
        one = {"key": f"payment#{UUID}", "record": revision, "verdict": {"why": why}}
        both.append({"letters": [{"id": "a", **one}, {"id": "b", **one}]})
    (found,) = changes(*both)
    assert f"payment#{short(UUID)}" in found
    assert "owner" not in found
    other = {"status": {"S": FAILED}, "attempt": {"N": "7"}, "owner": {"S": "c"}}
    now = {"status": {"S": FAILED}, "attempt": {"N": "0"}, "owner": {"S": "d"}}
    plans = [
        {"action": "release", "key": f"payment#{UUID}", "record": each} for each in (other, now)
    ]
    (found,) = changes(*plans)
    assert short(UUID) in found
    assert "released" in found


documents = st.dictionaries(
    st.sampled_from(["letters", "record", "target", "rules", "events", "steps"]),
    st.recursive(
        st.none() | st.integers(0, 2) | st.sampled_from(["", "a"]),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(st.sampled_from(["id", "x"]), inner, max_size=2)
        ),
        max_leaves=4,
    ),
)


@given(documents, documents)
def test_every_change_of_a_plan_is_told(before: Any, after: Any) -> None:
    """Whatever a plan is bound to."""
    assert bool(changes(before, after)) == (before != after)
