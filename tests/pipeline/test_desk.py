"""The desk in a real browser, over a running local stack."""

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Final, Literal, NamedTuple

import pytest
import urllib3
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from carride_idempotency import observation
from engine.process import ROOT
from local.local_aws import FAULTS, LocalAws
from local.simulated_gateway import Books, GatewayServer
from ops import desk, fleet
from ops.audit import collect_evidence
from ops.audit.evidence import COPY
from ops.desk.registry import PLACES
from ops.finding import local_clients
from ops.stack import Kept, OperatorError, StackRef
from tests.pipeline.pipeline import Pipeline

pytestmark = pytest.mark.peer

CHROMIUM: Final = shutil.which("chromium")
PICTURE: Final = ROOT / "docs" / "images" / "desk-event.png"
PATIENCE_MS: Final = 60_000
"""A stalled run is taken over after seconds; other steps take less."""
CONSUMER: Final = "payment"
BALANCED: Final = re.compile(r"^\s*\d+ letters, 0 lost\s*$")
"""The poison's letters wait."""

type Scheme = Literal["light", "dark"]


class Site(NamedTuple):
    """A stack with simulated rides, and the desk that shows it."""

    pipeline: Pipeline
    ref: StackRef
    url: str


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """A stack on an engine of its own, which the last test of this module ends."""
    with ExitStack() as stack:
        gateway = stack.enter_context(GatewayServer(Books()))
        cloud = stack.enter_context(LocalAws("--retry-delays=0.5,1.0", *FAULTS))
        cloud.build()
        pipeline = Pipeline(cloud, cloud.deploy_fast("desk", PaymentGatewayUrl=gateway.url))
        fleet.seed(cloud.client("dynamodb"), pipeline.stack.outputs["CarTableName"], 20)
        pipeline.simulate(rides=10, seed=1, duplicates=0.3, crashes=1, poison=1, malformed=6)
        local = Kept("desk", cloud.region, cloud.endpoint_url, gateway.url, "", os.getpid())
        ref = StackRef(local.name, local.region, local_clients(local), local)
        yield Site(pipeline, ref, stack.enter_context(desk.serving(ref, 0)))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's chromium."""
    if CHROMIUM is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        # Root has no sandbox.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, site: Site) -> Iterator[Page]:
    """A page that writes no error to its console."""
    page = browser.new_page(base_url=site.url, viewport={"width": 1280, "height": 800})
    page.set_default_timeout(PATIENCE_MS)
    errors: list[str] = []
    page.on(
        "console", lambda message: errors.append(message.text) if message.type == "error" else None
    )
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    assert errors == []


def shown(locator: Locator) -> None:
    """Wait until something is shown."""
    expect(locator).to_be_visible(timeout=PATIENCE_MS)


def event_of(site: Site, consumer: str = CONSUMER, outcome: str = observation.NEW) -> str:
    """Return the path of the newest event with such an outcome at a consumer.

    It is a completion of a ride, or what the stall of Flow copies. Nobody has published a copy of
    it.
    """
    evidence = collect_evidence(site.ref)
    facts = set()
    for each in evidence.deliveries:
        if (each.consumer, each.outcome) == (consumer, outcome):
            facts.add(each.fact)
    copies = Counter(each.fact for each in evidence.published)
    kind = "CarRideCompleted"
    begin = "order_1_"
    if outcome == observation.LOST_LEASE:
        kind = "CarAssigned"
        begin = "order_"
    found = [
        each
        for each in evidence.published
        if each.fact in facts
        and copies[each.fact] == 1
        and each.named is not None
        and each.named.type == kind
        and each.named.order_id.startswith(begin)
    ]
    newest = max(found, key=lambda each: each.time)
    return f"/event/{newest.fact}"


def test_the_ledger_is_the_audit(site: Site, page: Page) -> None:
    """Each number of the page is the audit's, and those of letters link to them."""
    page.goto("/ledger")
    shown(page.locator(".ledger").first)
    for name, account in site.pipeline.ledger().consumers.items():
        for field in ("distinct", "deliveries"):
            expect(page.locator(f"#{name}-{field}")).to_have_text(f"{getattr(account, field):,}")
        for field in ("effects", "lost", "doubled"):
            numbers = [f"{getattr(account, field):,}"] if getattr(account, field) else []
            expect(page.locator(f"#{name}-{field}")).to_have_text(numbers)
        for group, number in (
            ("duplicate", account.duplicates_absorbed),
            ("failed", account.failed),
            ("takeover", account.takeovers),
        ):
            locator = page.locator(f"#{name}-deliveries-{group}")
            if number or locator.count():
                expect(locator).to_have_text(f"{number:,}")
    page.locator(".ledger a").first.click()
    page.wait_for_url(re.compile("/letters.at="))
    shown(page.locator(".groups .group").first)


def test_the_ledger_counts_what_was_published(site: Site, page: Page) -> None:
    """New events change the page without a reload."""
    page.goto("/ledger")
    for seed in (2, 3):
        ledger = site.pipeline.simulate(rides=2, seed=seed, duplicates=0.5)
        numbers = f"{ledger.published:,} events published, {ledger.distinct:,} of them distinct"
        expect(page.locator(".facts-line")).to_contain_text(numbers, timeout=PATIENCE_MS)


def test_a_fault_is_seen_on_the_page(site: Site, page: Page) -> None:
    """A button of Flow fails payment five times; the ledger has all five when it is over.

    They are over within a second, which is too short for a band in the picture.
    """
    before = site.pipeline.ledger().consumers["payment"].failed
    page.goto("/")
    page.get_by_role("button", name="Inject: Fail payment five times").click()
    expect(page.locator(".toast")).to_contain_text("5 copies of")
    page.goto("/ledger")
    failed = page.locator("#payment-deliveries-failed")
    expect(failed).to_have_text(f"{before + 5}", timeout=PATIENCE_MS)
    expect(page.locator(".verdict")).to_have_text(BALANCED, timeout=PATIENCE_MS)
    ledger = site.pipeline.ledger()
    assert (ledger.lost, ledger.doubled) == (0, 0)


def test_no_fault_leaves_a_scar(site: Site, page: Page) -> None:
    """Each fault shows in a ride that went well, which then gives its car and its money back."""
    page.goto("/")
    buttons = page.get_by_role("button", name=re.compile("^Inject"))
    shown(buttons.first)
    before = cars_held(site)
    for number in range(buttons.count()):
        buttons.nth(number).click()
        toast = page.locator(".toast").filter(has_text=re.compile("CarRideAccepted|CarAssigned"))
        shown(toast.first)
        link = str(toast.locator("a").first.get_attribute("href"))
        if link.startswith("/ride/"):
            page.goto(link)
            shown(page.locator(".w-event", has_text="CarRideCancelled"))
            page.goto("/")
    expect(page.locator(".verdict")).to_have_text(BALANCED, timeout=PATIENCE_MS)
    ledger = site.pipeline.ledger()
    assert (ledger.lost, ledger.doubled) == (0, 0)
    assert cars_held(site) == before
    payments = tables(site, "PaymentTable")
    states = {item["state"]["S"] for item in payments if COPY in item["orderID"]["S"]}
    assert states <= {"refunded", "cancelled"}


def tables(site: Site, name: str) -> list[dict[str, dict[str, str]]]:
    """Return the items of a table."""
    table = site.pipeline.stack.outputs[f"{name}Name"]
    found = site.pipeline.cloud.client("dynamodb").scan(TableName=table, ConsistentRead=True)
    return list(found["Items"])


def cars_held(site: Site) -> set[str]:
    """Return the rides that hold a car."""
    items = tables(site, "AssignmentTable")
    return {item["orderID"]["S"] for item in items if item["state"]["S"] == "assigned"}


def test_the_keyboard_is_enough(site: Site, page: Page) -> None:
    """Keys skip to the content, change the view, and open a letter and its event."""
    page.goto("/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip")).to_be_focused()
    page.get_by_role("link", name="Dead letters").first.press("Enter")
    page.wait_for_url(re.compile("/letters"))
    page.locator(".groups li a").first.press("Enter")
    page.wait_for_url(re.compile("letter="))
    page.locator(".pairs a[href^='/event/']").press("Enter")
    page.wait_for_url(re.compile("/event/"))


def test_the_story_of_a_ride_is_a_page(site: Site, page: Page) -> None:
    """The search leads to it; a run opens in place, and stays open while the page is live."""
    page.goto("/")
    page.keyboard.press("/")
    page.keyboard.type("order_1_00003")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/ride/order_1_00003"))
    shown(page.get_by_role("heading", name="Ride order_1_00003"))
    shown(page.locator(".w-event", has_text="PaymentAuthorized"))
    run = page.locator(".w-open").first
    run.locator("summary").press("Enter")
    expect(run.locator(".w-detail")).to_contain_text("attempt 1")
    page.keyboard.press("j")
    shown(run.locator(".w-detail"))


def test_j_and_k_move_through_the_rows_of_tables(site: Site, page: Page) -> None:
    """On the ledger, a row has a link for each consumer: the first one is focused."""
    page.goto("/ledger")
    first = page.locator(".ledger tr:has(a)").nth(0).locator("a").first
    second = page.locator(".ledger tr:has(a)").nth(1).locator("a").first
    shown(first)
    for key, link in (("j", first), ("j", second), ("k", first)):
        page.keyboard.press(key)
        expect(link).to_be_focused()


def test_the_focus_outlives_a_live_update(site: Site, page: Page) -> None:
    """It stays at its row, which has no address, also when a row has come before it."""
    page.goto("/ride/order_1_00003")
    rows = page.locator("#live .row")
    shown(rows.first)
    for _ in range(2):
        page.keyboard.press("j")
    expect(rows.nth(1)).to_be_focused()
    name = page.locator("#live .w-open").first.get_attribute("id")
    following = rows.nth(2).get_attribute("href")
    anew = """
        const live = document.getElementById("live");
        replace(live, '<a class="row" href="/">earlier</a>' + live.innerHTML);
    """
    page.evaluate(f"() => {{ {anew} }}")
    expect(page.locator(f"[id='{name}'] > summary")).to_be_focused()
    page.keyboard.press("j")
    expect(page.locator(f"#live .row[href='{following}']")).to_be_focused()


def test_whoever_goes_back_finds_the_row_that_was_left(page: Page) -> None:
    """By Esc, and by the browser's own way back."""
    page.goto("/find?q=order_1_")
    rows = page.locator("#live .row")
    shown(rows.first)
    for _ in range(4):
        page.keyboard.press("j")
    left = str(rows.nth(3).get_attribute("href"))
    for goes_back in (lambda: page.keyboard.press("Escape"), page.go_back):
        page.keyboard.press("Enter")
        page.wait_for_url(f"**{left}")
        shown(page.get_by_role("heading", name=re.compile("^Ride ")))
        goes_back()
        page.wait_for_url(re.compile("/find.q=order_1_$"))
        expect(page.locator(f"#live .row[href='{left}']")).to_be_focused()


def test_single_keys_find_move_and_explain(site: Site, page: Page) -> None:
    """Slash finds, g and a letter lead to a view, j and k to a row, and ? shows the keys."""
    page.goto("/")
    page.keyboard.press("/")
    field = page.get_by_label("Find by an id")
    expect(field).to_be_focused()
    page.keyboard.type("j/?")
    expect(field).to_have_value("j/?")
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("d")
    page.wait_for_url(re.compile("/letters"))
    links = page.locator("#live .row")
    shown(links.first)
    for key, row in (("j", 0), ("j", 1), ("k", 0), ("k", 0)):
        page.keyboard.press(key)
        expect(links.nth(row)).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Shortcuts")).to_be_hidden()


def test_an_address_that_leads_nowhere_is_a_page(site: Site) -> None:
    """It says so, with the navigation around it, and the status 404."""
    answer = urllib3.request("GET", f"{site.url}nope")
    text = answer.data.decode()
    assert answer.status == 404
    assert "There is no page /nope." in text
    assert 'aria-label="Views"' in text


@pytest.mark.parametrize(
    ("consumer", "button", "outcomes"),
    [
        ("dispatch", "Kill dispatch", ["takeover"]),
        ("dispatch", "Lose the answer of dispatch's commit", ["duplicate"]),
        ("payment", "Stall payment past its lease", ["late write fenced off", "takeover"]),
    ],
)
def test_no_button_loses_or_doubles(
    site: Site, page: Page, consumer: str, button: str, outcomes: list[str]
) -> None:
    """Each shows its outcomes at the consumer, and the ledger stays at lost 0, doubled 0."""
    page.goto("/")
    page.get_by_role("button", name=f"Inject: {button}").click()
    toast = page.locator(".toast").filter(has_text=re.compile("CarRideAccepted|CarAssigned"))
    shown(toast.first)
    ride = str(toast.locator("a").first.get_attribute("href"))
    page.goto(ride)
    copy = page.locator(".w-event a.row").first
    shown(copy)
    page.goto(str(copy.get_attribute("href")))
    told = page.locator(".w .w-row", has_text=consumer).locator(".w-outcome .chip")
    expect(told).to_have_text([re.compile(each) for each in outcomes], timeout=PATIENCE_MS)
    if "fenced" in outcomes[0] and os.environ.get("SCREENSHOTS"):
        page.set_viewport_size({"width": 1280, "height": 1100})  # as high as the page
        page.screenshot(path=PICTURE)
    page.goto(ride)
    expect(page.locator("main")).to_contain_text("CarRideCancelled", timeout=PATIENCE_MS)
    ledger = site.pipeline.ledger()
    assert (ledger.lost, ledger.doubled) == (0, 0)
    page.goto("/ledger")
    deliveries = f"{ledger.consumers[consumer].deliveries:,}"
    expect(page.locator(f"#{consumer}-deliveries")).to_have_text(deliveries, timeout=PATIENCE_MS)
    expect(page.locator(".standing")).to_contain_text("lost 0 doubled 0")


def test_letters_that_would_come_back_are_not_sent(site: Site, page: Page) -> None:
    """One that breaks the contract says so, and leads to its event."""
    page.goto("/letters")
    page.locator(".groups .group", has_text="Breaks the contract").first.click()
    page.wait_for_url(re.compile("group="))
    expect(page.locator(".groups [aria-expanded]")).to_contain_text("Breaks the contract")
    page.locator(".groups li a").first.click()
    page.wait_for_url(re.compile("letter="))
    shown(page.get_by_role("heading", name="A redrive would not help"))
    event = page.locator(".pairs a[href^='/event/']")
    shown(event)
    event.click()
    page.wait_for_url(re.compile("/event/"))
    shown(page.get_by_role("heading", name="CarRide"))


@pytest.mark.parametrize("width", [1280, 390])
def test_a_redrive_is_offered_as_a_command_that_only_shows_it(
    site: Site, page: Page, width: int
) -> None:
    """It is copied from the list of letters, and nothing is done without --yes."""
    page.set_viewport_size({"width": width, "height": 844})
    page.goto("/letters")
    command = page.locator(".groups .command code").first
    shown(command)
    words = command.inner_text()
    assert words.startswith("./carride redrive ")
    assert "--yes" not in words


@pytest.mark.parametrize(("scheme", "width"), [("dark", 400), ("light", 1920)])
def test_every_text_can_be_read(site: Site, browser: Browser, scheme: Scheme, width: int) -> None:
    """No page breaks a rule of WCAG AA, such as contrast, or is wider than the window."""
    page = browser.new_page(
        base_url=site.url, color_scheme=scheme, viewport={"width": width, "height": 900}
    )
    event = event_of(site, outcome=observation.LOST_LEASE)
    page.goto("/letters")
    letter = str(page.locator(".groups li a").first.get_attribute("href"))
    for path in (
        *(place.path for place in PLACES),
        "/ride/order_1_00003",
        "/find?q=order_1_",
        letter,
        event,
        "/nope",
        "/#shortcuts",
    ):
        page.goto(path)
        shown(page.locator("main h1"))
        if path == "/#shortcuts":
            page.keyboard.press("?")
            shown(page.get_by_role("dialog"))
        found = (
            Axe()
            .run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21aa"]})
            .response["violations"]
        )
        assert [(each["help"], node["html"]) for each in found for node in each["nodes"]] == [], (
            path
        )
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    page.close()


INSETS: Final = """card => {
  const parts = card.querySelectorAll(":scope > header, .pages, .legend, .w-event, tr");
  const edges = new Set();
  for (const part of parts) {
    const cell = part.matches("tr") ? part.firstElementChild : null;
    const shown = part.getBoundingClientRect();
    if (!shown.width || shown.right < 0) continue;
    let inset = shown.left + parseFloat(getComputedStyle(part).paddingLeft);
    if (cell) inset += parseFloat(getComputedStyle(cell).paddingLeft);
    edges.add(Math.round(inset));
  }
  return [...edges];
}"""
"""The left edges of what a card has one below the other."""


def test_on_a_phone_rows_begin_where_head_and_foot_of_their_card_do(site: Site, page: Page) -> None:
    """Otherwise a note below a table looks as if it belonged elsewhere."""
    page.set_viewport_size({"width": 390, "height": 844})
    event = event_of(site)
    for path in ("/find?q=order_1_", "/ledger", event):
        page.goto(path)
        cards = page.locator("main .card")
        shown(cards.first)
        for card in cards.all():
            assert len(card.evaluate(INSETS)) <= 1, path


def test_the_open_group_of_letters_shows_its_whole_error(page: Page) -> None:
    """A closed one has room for its beginning only, on a phone."""
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/letters")
    error = page.locator(".group[aria-expanded] code")
    shown(error)
    error.evaluate("each => each.textContent = 'GatewayUnavailableError '.repeat(20)")
    assert error.evaluate("each => each.scrollHeight <= each.clientHeight + 2")


def test_other_sites_are_refused(site: Site) -> None:
    """Another host name is refused, which DNS rebinding would use.

    So is a change that another origin asks for, and one without the token of a page.
    """
    token = re.search(
        r'name="token" value="(\w+)"', urllib3.request("GET", site.url + "ledger").data.decode()
    )
    assert token is not None
    form = f"token={token[1]}"
    here = {"Origin": site.url.rstrip("/")}
    for method, path, headers, body, status in (
        ("GET", "", {}, None, 200),
        ("GET", "", {"Host": "desk.example:8765"}, None, 421),
        ("POST", "audit", {}, form, 403),
        ("POST", "audit", {"Origin": "http://desk.example"}, form, 403),
        ("POST", "audit", here, None, 403),
        ("POST", "audit", here, "token=0", 403),
        ("POST", "audit", here, form, 303),
    ):
        answer = urllib3.request(
            method, site.url + path, headers=headers, body=body, redirect=False
        )
        assert answer.status == status


def test_a_port_in_use_or_a_missing_stack_is_a_sentence(site: Site) -> None:
    """Neither starts anything."""
    port = urllib3.util.parse_url(site.url).port
    other = StackRef("other", site.ref.region, lambda service, _: site.ref.client(service))
    for ref, problem in ((site.ref, "--port"), (other, "no stack")):
        with pytest.raises(OperatorError, match=problem), desk.serving(ref, port or 0):
            pass


def test_the_page_outlives_the_engine(site: Site, page: Page) -> None:
    """It says that the stack does not answer, and shows the last state."""
    page.goto("/ledger")
    total = page.locator("#payment-distinct")
    shown(total)
    published = total.inner_text()
    site.pipeline.cloud.stop()
    expect(page.get_by_role("alert").first).to_contain_text("local stack", timeout=PATIENCE_MS)
    expect(page.locator(".verdict")).to_have_text("Unknown", timeout=PATIENCE_MS)
    expect(page.locator(".standing")).to_contain_text("lost ? doubled ?")
    expect(total).to_have_text(published)
