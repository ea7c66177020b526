"""The keyboard reaches everything and decides only where a person put it (case 50)."""

import pytest
from playwright.sync_api import Page, expect

from approvals.models import Approval, Decision
from runs.models import Prompt
from tests import factories, scenes
from tests.e2e import scenery
from tests.e2e.browsing import Visitors
from tests.e2e.scenery import approval_at, run_at
from tests.factories import Cast
from tests.fake_hermes import FakeHermes

pytestmark = pytest.mark.browser

# Marks what a person can act on and returns how many of these there are. A closed <details> hides what is in it.
STOPS = """() => {
  const stops = Array.from(document.querySelectorAll(
    'a[href], button:not([disabled]), input:not([type=hidden]), select, textarea, summary, [tabindex="0"]'
  )).filter((node) => node.checkVisibility({ visibilityProperty: true }));
  stops.forEach((node, at) => (node.dataset.stop = at));
  return stops.length;
}"""
FOCUSED = "() => document.activeElement.dataset.stop ?? ''"
UNREACHED = """reached => Array.from(document.querySelectorAll('[data-stop]'))
  .filter((node) => !reached.includes(node.dataset.stop)).map((node) => node.outerHTML.slice(0, 100))"""
DECIDES = "() => document.activeElement.closest('[data-decides]') !== null"


@pytest.fixture
def prompt(desk: Cast) -> Prompt:
    return scenes.asks(scenes.running(desk.requester, desk.endpoint))


@pytest.fixture
def card(prompt: Prompt) -> Approval:
    return scenes.card(prompt)


def votes(card: Approval) -> list[tuple[str, str, str]]:
    return [(vote.by.username, vote.verdict, vote.choice) for vote in Decision.objects.filter(approval=card)]


def unreached(page: Page) -> list[str]:
    """What Tab does not come to. Some controls take several presses, such as a date."""
    count: int = page.evaluate(STOPS)
    reached: list[str] = []
    page.evaluate("document.activeElement.blur()")
    for _ in range(count * 8 + 8):
        page.keyboard.press("Tab")
        at = page.evaluate(FOCUSED)
        if at == "" and reached:
            break
        if at not in reached:
            reached.append(at)
    return list(page.evaluate(UNREACHED, reached))


def test_tab_comes_to_everything(enter: Visitors, desk: Cast, hermes: FakeHermes, card: Approval) -> None:
    waiting = scenery.talking(desk)
    lost = scenery.unknown(desk, hermes)
    for who, path in (
        ("reviewer", "/"),
        ("reviewer", approval_at(card)),
        ("requester", "/runs/start/"),
        ("requester", run_at(waiting)),
        ("reviewer", scenery.action_at(lost)),
        ("auditor", "/evidence/"),
    ):
        page = enter(who, path)
        assert not unreached(page), path


def test_what_has_the_focus_is_outlined(enter: Visitors, desk: Cast, card: Approval) -> None:
    page = enter("reviewer", approval_at(card))
    page.get_by_label("Reason, for the record").focus()
    page.keyboard.press("Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert page.evaluate(DECIDES)
    assert outline != "none"


def test_nothing_that_decides_takes_the_focus_by_itself(enter: Visitors, desk: Cast, card: Approval) -> None:
    page = enter("reviewer", approval_at(card))
    page.wait_for_function("() => window.htmx !== undefined")
    assert page.evaluate("document.activeElement === document.body")
    page.keyboard.press("Enter")
    page.keyboard.press("Space")
    queue = enter("reviewer", "/")
    later = scenes.card(
        scenes.asks(scenes.running(desk.requester, desk.endpoint, text="Another"), "rm -rf /srv/other")
    )
    expect(queue.locator("[data-card]").filter(has_text="/srv/other")).to_be_visible()
    assert queue.evaluate("document.activeElement === document.body")
    assert votes(card) == votes(later) == []


def test_a_card_that_changes_leaves_the_reason_where_it_is(
    enter: Visitors, desk: Cast, prompt: Prompt
) -> None:
    """The card is drawn anew while somebody writes: text, caret and focus stay."""
    factories.policy(desk.acme, factories.require("run_approval", 2))
    again = scenes.card(scenes.asks(scenes.running(desk.requester, desk.endpoint), "rm -rf /srv/two-people"))
    page = enter("reviewer", approval_at(again))
    reason = page.get_by_label("Reason, for the record")
    reason.press_sequentially("I think that")
    scenery.decide(again, desk.second, choice="once")
    expect(page.locator("#approval")).to_contain_text("The first vote fixed the choice")
    expect(reason).to_have_value("I think that")
    expect(reason).to_be_focused()
    page.keyboard.type(" it is right")
    expect(reason).to_have_value("I think that it is right")
    assert votes(again) == [("second", "approve", "once")]


def test_enter_in_the_reason_decides_nothing(enter: Visitors, desk: Cast, card: Approval) -> None:
    page = enter("reviewer", approval_at(card))
    reason = page.get_by_label("Reason, for the record")
    reason.fill("One line")
    for keys in ("Enter", "Control+Enter", "Shift+Enter"):
        reason.press(keys)
    page.keyboard.type("j k ?")
    page.wait_for_function("() => document.querySelector('#reason').value.endsWith('j k ?')")
    page.reload()
    expect(page.get_by_role("button", name="Allow once")).to_be_enabled()
    assert votes(card) == []


def test_enter_in_a_field_of_one_line_sends_nothing_that_decides(
    enter: Visitors, desk: Cast, card: Approval
) -> None:
    page = enter("reviewer", approval_at(card))
    page.get_by_label("Reason, for the record").fill("A reason")
    page.locator("details.choice summary").first.press("Enter")
    tick = page.locator("input[name=confirm]").first
    tick.check()
    tick.press("Enter")
    page.reload()
    expect(page.get_by_role("button", name="Allow once")).to_be_enabled()
    assert votes(card) == []


@pytest.mark.parametrize("key", ["Enter", "Space"])
def test_deny_denies(enter: Visitors, desk: Cast, card: Approval, key: str) -> None:
    page = enter("reviewer", approval_at(card))
    page.get_by_label("Reason, for the record").fill("Not this one.")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Deny", exact=True)).to_be_focused()
    page.keyboard.press(key)
    expect(page.locator("#approval .note.go")).to_have_text("Recorded.")
    assert votes(card) == [("reviewer", "deny", "deny")]


def test_a_card_replaced_between_press_and_release_is_not_answered(enter: Visitors, desk: Cast) -> None:
    factories.policy(desk.acme, factories.require("run_approval", 2))
    card = scenes.card(scenes.asks(scenes.running(desk.requester, desk.endpoint)))
    page = enter("reviewer", approval_at(card))
    page.get_by_label("Reason, for the record").fill("It is right.")
    page.get_by_role("button", name="Allow once").focus()
    page.keyboard.down("Space")
    scenery.decide(card, desk.second, choice="once")
    expect(page.locator("#approval")).to_contain_text("The first vote fixed the choice")
    page.keyboard.up("Space")
    page.reload()
    expect(page.get_by_role("button", name="Allow once")).to_be_enabled()
    assert votes(card) == [("second", "approve", "once")]


def test_a_vote_on_what_is_no_longer_shown_is_refused(enter: Visitors, desk: Cast) -> None:
    """The page did not hear that the card changed; the digest that it carries says so."""
    factories.policy(desk.acme, factories.require("run_approval", 2))
    card = scenes.card(scenes.asks(scenes.running(desk.requester, desk.endpoint)))
    page = enter("reviewer", approval_at(card))
    page.route(f"**{approval_at(card)}?*", lambda route: route.fulfill(status=204))
    scenery.decide(card, desk.second, choice="session")
    page.get_by_label("Reason, for the record").fill("It is right.")
    page.get_by_role("button", name="Allow once").click()
    expect(page.locator("#approval .note.stop")).to_be_visible()
    assert votes(card) == [("second", "approve", "session")]


def test_keys_move_in_the_queue_and_never_decide(enter: Visitors, desk: Cast, card: Approval) -> None:
    page = enter("reviewer", "/")
    page.wait_for_function("() => window.htmx !== undefined")
    page.keyboard.press("j")
    expect(page.locator("[data-card] a")).to_be_focused()
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{approval_at(card)}")
    for key in "ajkdyn?":
        page.keyboard.press(key)
    page.reload()
    assert votes(card) == []
