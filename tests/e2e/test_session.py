"""What happens under an open page: the session ends, somebody else signs in, answers fail, a click comes twice."""

import re
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from playwright.sync_api import Page, expect

from approvals.models import Approval, Decision
from runs.models import Run
from tests import factories, scenes
from tests.e2e import scenery
from tests.e2e.browsing import NARROW, Visitors, shoot, sign_in_by_form, stay, stayed
from tests.e2e.scenery import approval_at
from tests.factories import Cast

pytestmark = pytest.mark.browser


@pytest.fixture
def card(desk: Cast) -> Approval:
    return scenes.card(scenes.asks(scenes.running(desk.requester, desk.endpoint)))


def votes(card: Approval) -> list[str]:
    return [vote.by.username for vote in Decision.objects.filter(approval=card)]


def allow(page: Page, reason: str = "It is right.") -> None:
    page.get_by_label("Reason, for the record").fill(reason)
    page.get_by_role("button", name="Allow once", exact=True).click()


def without_polls(page: Page, card: Approval) -> None:
    """The page hears nothing new, so that the press is the first to meet what changed."""
    page.route(f"**{approval_at(card)}?*", lambda route: route.fulfill(status=204))


def change_person(page: Page, name: str) -> None:
    """In another tab of the same browser, by the pages."""
    tab = page.context.new_page()
    tab.goto("/accounts/logout/")
    tab.locator("main").get_by_role("button", name="Sign out").click()
    tab.goto("/accounts/login/")
    sign_in_by_form(tab, name)
    tab.close()


# --- the session (case 44) --------------------------------------------------------------------------------------


def test_a_poll_after_the_session_ended_leads_to_the_sign_in_page_and_back(
    enter: Visitors, desk: Cast
) -> None:
    page = enter("reviewer", "/approvals/?tenant=acme")
    Session.objects.all().delete()
    page.wait_for_url(re.compile(r"/accounts/login/\?next="))
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.locator("form")).to_have_count(1)
    sign_in_by_form(page, "reviewer")
    assert page.url.startswith(f"{enter.origin}/approvals/?tenant=acme")


def test_a_decision_after_the_session_ended_is_not_taken(enter: Visitors, desk: Cast, card: Approval) -> None:
    page = enter("reviewer", approval_at(card))
    without_polls(page, card)
    Session.objects.all().delete()
    allow(page)
    page.wait_for_url(re.compile(r"/accounts/login/\?next="))
    assert "decide" not in page.url
    sign_in_by_form(page, "reviewer")
    page.wait_for_url(f"**{approval_at(card)}")
    expect(page.get_by_role("button", name="Allow once")).to_be_enabled()
    assert votes(card) == []


def test_a_decision_under_another_person_is_refused_and_says_who_is_signed_in(
    enter: Visitors, desk: Cast, card: Approval
) -> None:
    page = enter("reviewer", approval_at(card))
    without_polls(page, card)
    change_person(page, "second")
    allow(page)
    expect(page.get_by_text("You are now signed in as second").first).to_be_visible()
    assert votes(card) == []


def test_a_page_is_drawn_anew_for_another_person_whole_or_not_at_all(
    enter: Visitors, desk: Cast, card: Approval
) -> None:
    """Never a form of one person below the name of another."""
    page = enter("requester", approval_at(card))
    without_polls(page, card)
    change_person(page, "reviewer")
    page.unroute_all()
    expect(page.get_by_role("button", name="Allow once")).to_be_visible()
    expect(page.locator("header .me")).to_contain_text("reviewer")


def test_a_decision_with_an_old_token_is_refused_visibly(enter: Visitors, desk: Cast, card: Approval) -> None:
    page = enter("reviewer", approval_at(card))
    page.context.add_cookies([{"name": "csrftoken", "value": "x" * 32, "url": enter.origin}])
    enter.watch.noise.append("Response Status Error Code 403")
    allow(page)
    expect(page.locator("#banner")).to_contain_text("out of date")
    page.get_by_role("button", name="Load again").click()
    expect(page.locator("#banner")).to_be_hidden()
    assert votes(card) == []


def test_polling_keeps_no_session_alive(enter: Visitors, desk: Cast) -> None:
    page = enter("reviewer", "/")
    (before,) = Session.objects.values_list("expire_date", flat=True)
    for _ in range(2):
        with page.expect_response(lambda response: "v=" in response.url):
            pass
    assert list(Session.objects.values_list("expire_date", flat=True)) == [before]


# --- clicks (case 45) -------------------------------------------------------------------------------------------


def test_a_double_click_is_one_decision(enter: Visitors, desk: Cast, card: Approval) -> None:
    page = enter("reviewer", approval_at(card))
    stay(page)
    page.get_by_label("Reason, for the record").fill("It is right.")
    page.get_by_role("button", name="Allow once", exact=True).dblclick()
    expect(page.locator("#approval .note.go")).to_have_text("Recorded.")
    assert stayed(page)
    assert votes(card) == ["reviewer"]


def test_allow_and_deny_in_one_breath_are_one_decision(enter: Visitors, desk: Cast, card: Approval) -> None:
    page = enter("reviewer", approval_at(card))
    page.get_by_label("Reason, for the record").fill("It is right.")
    page.evaluate(
        "() => ['choice', 'verdict'].forEach(name => document.querySelector(`.acts [name=${name}]`).click())"
    )
    expect(page.locator("#approval .note.go")).to_have_text("Recorded.")
    assert [vote.choice for vote in Decision.objects.filter(approval=card)] == ["once"]


def test_whoever_clicks_second_is_told_who_was_first(enter: Visitors, desk: Cast, card: Approval) -> None:
    pages = [enter(name, approval_at(card)) for name in ("reviewer", "second")]
    without_polls(pages[1], card)
    allow(pages[0])
    expect(pages[0].locator("#approval .note.go")).to_have_text("Recorded.")
    allow(pages[1])
    expect(pages[1].locator("#approval [role=alert]")).to_contain_text("reviewer")
    expect(pages[1].locator("#say")).to_contain_text("reviewer")  # announced
    assert votes(card) == ["reviewer"]


def test_a_double_click_on_start_is_one_run(enter: Visitors, desk: Cast) -> None:
    page = enter("requester", "/runs/start/")
    page.get_by_label("Input", exact=True).fill("Count the rows.")
    page.get_by_label("Reason").fill("Finance asked.")
    page.get_by_role("button", name="Ask for the run").dblclick()
    page.wait_for_url(re.compile(r"/runs/[0-9a-f-]{36}/$"))
    assert Run.objects.count() == 1


def test_a_reason_of_blanks_is_sent_back_with_a_sentence(enter: Visitors, desk: Cast, card: Approval) -> None:
    page = enter("reviewer", approval_at(card))
    stay(page)
    allow(page, "   ")
    expect(page.locator("#reason-wrong")).to_contain_text("Say why")
    assert stayed(page)
    assert votes(card) == []
    allow(page)
    expect(page.locator("#approval .note.go")).to_have_text("Recorded.")


# --- answers that do not come (case 45) -------------------------------------------------------------------------


def broken(page: Page, status: int) -> None:
    whole = "<h1>A whole page</h1>"
    page.route("**/decide/", lambda route: route.fulfill(status=status, body=whole, content_type="text/html"))


@pytest.mark.parametrize(
    ("status", "words"), [(403, "Nothing was done"), (500, "Not confirmed"), (503, "busy"), (0, "No answer")]
)
def test_an_answer_that_fails_is_a_banner_that_stays_and_never_a_page_in_a_card(
    enter: Visitors, desk: Cast, card: Approval, status: int, words: str
) -> None:
    enter.watch.noise += ["Response Status Error Code", "htmx:sendError"]
    page = enter("reviewer", approval_at(card))
    if status:
        broken(page, status)
    else:
        page.route("**/decide/", lambda route: route.abort())
    allow(page)
    banner = page.locator("#banner")
    expect(banner).to_contain_text(words)
    with page.expect_response(lambda response: "v=" in response.url):  # a poll that works takes nothing back
        pass
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
    expect(banner).to_be_visible()
    expect(page.get_by_text("A whole page")).to_have_count(0)
    expect(page.get_by_label("Reason, for the record")).to_have_value("It is right.")
    assert votes(card) == []
    if status == 500:
        shoot(page, "banner-1440-light")
    page.unroute_all()
    page.get_by_role("button", name="Load again").click()
    expect(banner).to_be_hidden()
    allow(page)
    expect(page.locator("#approval .note.go")).to_have_text("Recorded.")


def test_offline_is_said_and_taken_back(enter: Visitors, desk: Cast) -> None:
    enter.watch.noise += ["htmx:sendError"]
    page = enter("reviewer", "/")
    page.context.set_offline(True)
    expect(page.locator("#banner")).to_contain_text(re.compile("offline|No answer"))
    page.context.set_offline(False)
    expect(page.locator("#banner")).to_be_hidden()


def test_polls_that_fail_twice_are_said(enter: Visitors, desk: Cast) -> None:
    enter.watch.noise += ["Response Status Error Code"]
    page = enter("reviewer", "/")
    page.route("**/?v=*", lambda route: route.fulfill(status=500))
    expect(page.locator("#banner")).to_contain_text("The portal answered 500")
    page.unroute_all()
    expect(page.locator("#banner")).to_be_hidden()


# --- without scripts --------------------------------------------------------------------------------------------


def test_everything_works_without_scripts(enter: Visitors, desk: Cast, card: Approval) -> None:
    page = enter("", "/", javascript=False)
    sign_in_by_form(page, "reviewer")
    page.locator("[data-card] a").click()
    shoot(page, "card-without-scripts")
    allow(page)
    expect(page.get_by_role("status").get_by_text("Recorded.")).to_be_visible()
    expect(page.locator("aside")).to_contain_text("reviewer approved (once)")
    page.locator("header").get_by_role("button", name="Sign out").click()
    assert votes(card) == ["reviewer"]


def test_a_run_is_asked_for_and_stopped_without_scripts(enter: Visitors, desk: Cast) -> None:
    run = scenes.running(desk.requester, desk.endpoint, text="Watch the queue")
    page = enter("requester", "/runs/start/", javascript=False, width=NARROW)
    page.get_by_label("Input", exact=True).fill("Two\nlines")
    page.get_by_label("Reason").fill("Finance asked.\nTwice.")
    page.get_by_role("button", name="Ask for the run").click()
    expect(page.get_by_role("heading", name="Two lines")).to_be_visible()
    assert "[U+000D]" not in str(page.locator("main").text_content())
    page.goto(scenery.run_at(run))
    page.get_by_label("Reason, for the record").fill("Enough.")
    page.get_by_role("button", name="Ask for a stop").click()
    expect(page.get_by_text("A stop is sent after its approval.")).to_be_visible()


def test_a_wrong_password_says_so_and_keeps_the_name(enter: Visitors, desk: Cast, quiet_cache: Any) -> None:
    page = enter("", "/accounts/login/")
    page.get_by_label("Username").fill("reviewer")
    page.get_by_label("Password").fill("wrong horse battery")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert").first).to_be_visible()
    expect(page.get_by_label("Username")).to_have_value("reviewer")
    shoot(page, "sign-in-wrong")
    sign_in_by_form(page, "reviewer", factories.PASSWORD)
    expect(page.get_by_role("heading", name="Waiting for a decision")).to_be_visible()
