"""The application keeps its promises, a seed is one story, and what is wrong is noticed."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.world.__main__ import text_of
from tests.world.regions import Pair
from tests.world.run import Report, World, run
from tests.world.shrinking import kinds_of, shrink
from tests.world.story import Story, Tier, Window, tell
from tests.world.wiring import Attempts, Wiring, paired, wiring

pytestmark = pytest.mark.proof

FIRST = {Tier.CALM: range(4), Tier.LIGHT: range(8), Tier.HEAVY: range(5)}
OTHERS = {Tier.CALM: range(4, 12), Tier.LIGHT: range(8, 25), Tier.HEAVY: range(5, 15)}
HOURLY = 12
"""Every how many of its runs the reconciler looks around once an hour."""
AT_ITS_RATE = 7
"""The seed of the stories in which it runs at its rate: two rides, looked at again after days."""


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(FIRST, id="the first stories"),
        pytest.param(OTHERS, id="others", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("tier", Tier)
def test_promises_hold_in_every_story(tier: Tier, seeds: Mapping[Tier, range]) -> None:
    """Each fact takes effect once, each ride is paid, nothing stays open, the audit is balanced.

    Most of what the reconciler asks for finds nothing, so that it mostly runs once an hour.
    """
    for seed in seeds[tier]:
        story = tell(seed, tier)
        if seed != AT_ITS_RATE:
            story = story._replace(ticks=HOURLY)
        report = run(story)
        assert not report.broken, f'make simulate ARGS="--seed {seed} --tier {tier} --explain"'


def test_promises_hold_through_a_failover() -> None:
    """The replicas agree, and each fact took effect once, whichever region worked on it."""
    for seed in range(4):
        report = run(_failing_over(seed))
        assert not report.broken, f"seed {seed} with a failover: {report.broken}"


def test_nothing_is_lost_on_the_way_back() -> None:
    """Dispatch stood still in both regions, so that the primary has kept what is a letter there."""
    for seed in (9, 10):
        report = run(_deaf(seed))
        assert not report.broken, f"seed {seed} with a failover: {report.broken}"


def test_an_effect_that_is_lost_on_the_way_back_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit names it if the primary starts before the secondary's letters are redriven."""
    redrive = World.redrive

    def not_before(world: World, *regions: World) -> None:
        if len(regions) > 1:
            redrive(world, *regions)

    monkeypatch.setattr(World, "redrive", not_before)
    broken = run(_deaf(9)).broken
    assert any(each.startswith("dispatch lost") for each in broken), broken
    assert any(each.startswith("the audit says lost 1") for each in broken), broken


def test_a_seed_is_the_same_story_in_every_process() -> None:
    """A story depends on nothing else, and the command needs no environment.

    Neither the stories that were lived before in a process matter, nor how it hashes strings, nor
    what the shell has set for AWS.
    """
    seeds = (4, 5)  # a light and a heavy one, in which the reconciler runs every half an hour
    told = [text_of(run(tell(seed)), explains=True) for seed in seeds]
    shell = {name: text for name, text in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.world", "--first", "4", "--seeds", "2", "--explain"],
        env=shell | {"PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
    )
    for text in told:
        assert text in done.stdout
        assert len(text.splitlines()) > 50
    assert "2 stories, 0 broke a promise" in done.stdout
    assert "2 runs, 0 broke a promise" in done.stdout


# ── What is wrong is noticed ──────────────────────────────────────────────────────────────────────

type Change = Callable[[Wiring], Wiring]


def _first_broken(change: Change, tier: Tier, stories: int) -> Report | None:
    """Return the first story that breaks a promise in a stack with a change."""
    changed = change(wiring())
    for seed in range(stories):
        story = tell(seed, tier)
        if tier is Tier.LIGHT:
            story = story._replace(share=0.2)  # many faults, so that few stories will do
        story = story._replace(ticks=HOURLY)  # so that each takes little time
        report = run(story, changed)
        if report.broken:
            return report
    return None


def _rule(name: str, **changes: Any) -> Change:
    def change(wired: Wiring) -> Wiring:
        return wired._replace(rules={**wired.rules, name: wired.rules[name]._replace(**changes)})

    return change


def _without_a_type(wired: Wiring) -> Wiring:
    """Have payment's rule not match CarAssigned."""
    rule = wired.rules["PaymentRule"]
    first, *others = rule.pattern["detail"]["$or"]
    kept = [name for name in first["type"] if name != "CarAssigned"]
    detail = {"$or": [{"type": kept}, *others]}
    return _rule("PaymentRule", pattern={**rule.pattern, "detail": detail})(wired)


def _without_retries(wired: Wiring) -> Wiring:
    (target,) = wired.rules["DispatchRule"].targets
    none = target._replace(attempts=target.attempts._replace(retries=0))
    return _rule("DispatchRule", targets=(none,))(wired)


def _without_lambdas_retries(wired: Wiring) -> Wiring:
    spec = wired.functions["PaymentFunction"]
    none = spec._replace(attempts=Attempts(0, spec.attempts.oldest_s, spec.attempts.dlq))
    return wired._replace(functions={**wired.functions, "PaymentFunction": none})


def _two_receives(wired: Wiring) -> Wiring:
    queue = wired.queues["DispatchQueue"]._replace(receives=2)
    return wired._replace(queues={**wired.queues, "DispatchQueue": queue})


def _another_field(wired: Wiring) -> Wiring:
    """Have the pipe take an event's type from another attribute."""
    (pipe,) = wired.pipes
    template = pipe.template.replace("NewImage.type.S", "NewImage.dataschema.S")
    return wired._replace(pipes=(pipe._replace(template=template),))


def _every_write(wired: Wiring) -> Wiring:
    """Have the pipe's filter match another region's items only."""
    (pipe,) = wired.pipes
    other = {"dynamodb": {"NewImage": {"region": {"S": ["eu-west-1"]}}}}
    return wired._replace(pipes=(pipe._replace(filters=(other,)),))


def _variable(function: str, name: str, value: str) -> Change:
    def change(wired: Wiring) -> Wiring:
        spec = wired.functions[function]
        changed = spec._replace(environment={**spec.environment, name: value})
        return wired._replace(functions={**wired.functions, function: changed})

    return change


def _rules_that_take_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the secondary's rules match the events of both regions."""
    primary, secondary = paired()
    alone = wiring().rules
    rules = {
        name: rule._replace(pattern=alone[name].pattern) for name, rule in secondary.rules.items()
    }
    wrong = (primary, secondary._replace(rules=rules))
    monkeypatch.setattr("tests.world.run.paired", lambda: wrong)


def _no_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the secondary begin while the primary still works."""
    monkeypatch.setattr(Pair, "_drain", lambda self: None)


@pytest.mark.parametrize("spoil", [_rules_that_take_copies, _no_drain])
def test_two_regions_that_work_on_the_same_events_are_noticed(
    spoil: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their effects are doubled, and the audit of both regions says so."""
    spoil(monkeypatch)
    assert any("doubled" in each for seed in range(8) for each in run(_failing_over(seed)).broken)


def _failing_over(seed: int) -> Story:
    """Return a story that fails over while a ride has just been accepted."""
    story = tell(seed, Tier.HEAVY).plain()
    accepted = sorted(life.at_s + life.steps[0].after_s for life in story.lives if life.steps)
    moment = accepted[len(accepted) // 2] if accepted else 100.0
    return story._replace(has_peer=True, fails_over_s=moment + 2.0, ticks=HOURLY)


def _deaf(seed: int) -> Story:
    """Return a story that fails over while no event reaches dispatch in any region."""
    window = Window("DispatchFunction", 0.0, 9 * 3600.0, 1.0)
    return _failing_over(seed)._replace(windows=(window,))


@pytest.mark.parametrize(
    ("change", "tier"),
    [
        pytest.param(_without_a_type, Tier.CALM, id="a type is missing in a pattern"),
        pytest.param(_without_retries, Tier.LIGHT, id="a rule without retries"),
        pytest.param(_without_lambdas_retries, Tier.LIGHT, id="a function without retries"),
        pytest.param(_two_receives, Tier.LIGHT, id="a receive count of two"),
        pytest.param(_another_field, Tier.CALM, id="another type in the pipe's template"),
        pytest.param(_every_write, Tier.CALM, id="another region in the pipe's filter"),
        pytest.param(
            _variable("DispatchFunction", "OUTBOX_TABLE", "carride-PaymentTable"),
            Tier.CALM,
            id="dispatch's outbox is another table",
        ),
    ],
)
def test_a_change_of_the_template_is_noticed(change: Change, tier: Tier) -> None:
    """Calm and light stories need no operator, so wrong wiring shows at once."""
    assert _first_broken(change, tier, 60) is not None


def test_a_broken_story_is_cut_down_to_what_breaks_it() -> None:
    """Of its rides and faults only those are left without which the promise would hold."""
    broken = _first_broken(_two_receives, Tier.LIGHT, 20)
    assert broken is not None
    smallest, runs = shrink(broken, _two_receives(wiring()))
    assert smallest.broken
    assert kinds_of(smallest.broken) & kinds_of(broken.broken)
    assert len(smallest.story.lives) == 1
    assert len(smallest.used) <= 6 < len(broken.used)
    assert runs <= 100
