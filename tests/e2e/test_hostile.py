"""Case 37: what wants to be a script, a tag, an attribute or a template is text, on every page, in a real browser."""

import json
import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from approvals import execution
from approvals.models import EndpointStatus, Execution
from hermes_portal import clock
from runs.models import Run
from tests import factories, scenes
from tests.e2e import scenery
from tests.e2e.browsing import HIT, NARROW, Visitors, shoot
from tests.e2e.conftest import HOSTILE_NAME, Grounds
from tests.e2e.scenery import action_at, approval_at, run_at
from tests.factories import Cast
from tests.fake_hermes import FakeHermes, FakeRun, provider_error

pytestmark = pytest.mark.browser

STRINGS = (
    f'<img src="{HIT}" onerror="window.hit=1">',
    '"><svg/onload=window.hit=1>',
    "' onfocus='window.hit=1' autofocus tabindex='0",
    "&#39;);window.hit=1//",
    f'&lt;img src="{HIT}"&gt;',
    "javascript:window.hit=1",
    f"</script><script src={HIT}></script>",
    "</textarea></title></style></pre><script>window.hit=1</script>",
    "{{ 7|add:35 }}{% load static %}{{7*7}}${7*7}",
    f'<div hx-get="{HIT}" hx-trigger="load"></div>',
    '<b hx-on:click="window.hit=1" hx-on::load="window.hit=1">b</b>',
    f'<a href="data:text/html,<script src={HIT}></script>">link</a>',
    "[link](javascript:window.hit=1)",
    f'<style>@import "{HIT}";</style><link rel="stylesheet" href="{HIT}">',
    f'<iframe src="{HIT}"></iframe><base href="{HIT}"><meta http-equiv="refresh" content="0;url={HIT}">',
    f'<form action="{HIT}"><button autofocus>press</button></form>',
    "<ol hx-swap-oob='beforeend:#queue'><li>row</li></ol>",
    "</span></div></main><!-- --><dialog open>hit</dialog>",
)
ALL = " ".join(STRINGS)
SHORT = STRINGS[0]
# What none of our pages has, wherever it stands: elements and attributes that only an injection can have made.
INJECTED = (
    "img, svg, iframe, base, style, object, embed, body script, dialog[open], meta[http-equiv], a[href^='data:'], "
    "a[href^='javascript:' i], [onerror], [onload], [onfocus], [hx-on\\:click], [hx-get='/hit'], form[action='/hit']"
)


def assert_harmless(page: Page) -> None:
    """Nothing of it became an element, ran or changed the page. Requests are watched for everybody, see `Watch`."""
    found = page.evaluate(
        "selector => Array.from(document.querySelectorAll(selector)).map(e => e.outerHTML)", INJECTED
    )
    assert not found, f"{page.url}: {found}"
    assert page.evaluate("window.hit === undefined"), page.url


def missing(page: Page) -> list[str]:
    """The hostile strings that cannot be read, letter by letter, on the page: as they are, or as JSON writes them."""
    text = " ".join(str(page.locator("main").text_content()).split())
    return [string for string in STRINGS if string not in text and json.dumps(string)[1:-1] not in text]


# --- from rows --------------------------------------------------------------------------------------------------


def hostile_run(desk: Cast) -> Run:
    """Every member of every event, of the run and of its request."""
    run = scenes.running(desk.requester, desk.endpoint, text=ALL, reason=ALL)
    for kind in ("message.delta", "reasoning.available", "tool.started", "tool.completed", "run.failed"):
        scenes.event(run, kind, ALL, tool=ALL, duration=SHORT, error=SHORT, choice=ALL)
    scenes.event(run, STRINGS[0], ALL)
    scenes.event(run, STRINGS[1], "", **{SHORT: {ALL: [ALL]}})
    scenes.event(run, "gap", ALL, why=ALL)
    scenes.event(run, "unparsed", ALL, reason=ALL)
    Run.objects.filter(pk=run.pk).update(
        model=ALL[:300],
        session_id=ALL[:300],
        output=ALL,
        error=ALL,
        usage={SHORT: ALL},
        features={SHORT: ALL},
    )
    run.refresh_from_db()
    return run


def hostile_places(desk: Cast, hermes: FakeHermes) -> Iterator[scenery.Place]:
    """Rows of every kind whose texts are hostile, and where each of them shows."""
    hermes.script("POST", "/v1/runs", provider_error(500, ALL, ALL))
    lost = scenes.start(desk.requester, desk.endpoint, text=ALL, reason=ALL)
    execution.execute(lost.pk)
    Execution.objects.filter(action=lost).update(sentence=ALL[:500])
    run = hostile_run(desk)
    denied = scenes.card(scenes.asks(run, ALL, description=ALL))
    scenery.decide(denied, desk.reviewer, verdict="deny", reason=ALL)
    card = scenes.card(scenes.asks(run, ALL, description=ALL))
    stop = scenery.stop_of(desk, run)
    rule = factories.require("run_start", 2, name=STRINGS[1][:100])
    factories.policy(
        desk.acme, rule, factories.forbid("jobs_list", message=ALL[:300], name=SHORT), reason=ALL
    )
    start = scenes.start(desk.requester, desk.endpoint, text=ALL + " again", reason=ALL).approval
    scenery.decide(start, desk.second, verdict="approve", reason=ALL)
    EndpointStatus.objects.filter(endpoint=desk.endpoint).update(
        version=SHORT[:64], detail=ALL[:500], checked_at=clock.now(), features={SHORT: True}
    )
    yield scenery.Place("whole", "reviewer", run_at(run))
    yield scenery.Place("whole", "reviewer", approval_at(card))
    yield scenery.Place("whole", "auditor", "/evidence/")
    yield scenery.Place("whole", "reviewer", action_at(lost))
    for approval in (denied, stop, start):
        yield scenery.Place("part", "reviewer", approval_at(approval))
        yield scenery.Place("part", "requester", approval_at(approval))
    for path in (
        "/",
        "/runs/",
        "/requests/",
        "/endpoints/",
        f"/endpoints/{desk.endpoint.endpoint_id}/capabilities/",
    ):
        yield scenery.Place("part", "reviewer", path)
    yield scenery.Place("part", "requester", run_at(run))
    yield scenery.Place("part", "auditor", action_at(run.action))


def test_rows_are_shown_letter_by_letter_and_run_nothing(
    enter: Visitors, desk: Cast, hermes: FakeHermes
) -> None:
    desk.acme.name = HOSTILE_NAME
    desk.acme.save(update_fields=["name"])
    places = list(hostile_places(desk, hermes))
    pages = {who: enter(who) for who in {place.who for place in places}}
    for place in places:
        page = pages[place.who]
        page.goto(place.path)
        page.wait_for_function("() => window.htmx !== undefined")
        assert_harmless(page)
        expect(page.locator("header")).to_contain_text(HOSTILE_NAME)
        if place.name == "whole":
            assert not missing(page), f"{place.path}: {missing(page)}"
    narrow = enter("reviewer", places[0].path, width=NARROW)
    assert narrow.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    shoot(narrow, "hostile-run-390-light")


def test_what_a_poll_brings_is_text_too(enter: Visitors, desk: Cast) -> None:
    """Fragments take another way into the page than the page itself."""
    run = scenes.running(desk.requester, desk.endpoint)
    queue, live = enter("reviewer", "/"), enter("requester", run_at(run))
    scenes.event(run, "message.delta", ALL)
    scenes.event(run, STRINGS[1], ALL)
    prompt = scenes.asks(run, ALL, description=ALL)
    Run.objects.filter(pk=run.pk).update(error=ALL, output=ALL)
    expect(queue.locator("[data-card]")).to_contain_text(STRINGS[0])
    expect(live.locator("#transcript")).to_contain_text(STRINGS[-1])
    expect(live.locator("#state")).to_contain_text(STRINGS[-1])
    for page in (queue, live):
        assert_harmless(page)
    assert "<img" in queue.evaluate("document.querySelector('[data-card] a').textContent")
    card = enter("reviewer", approval_at(scenes.card(prompt)))
    card.get_by_label("Reason, for the record").fill(ALL)
    card.get_by_role("button", name="Deny", exact=True).click()
    expect(card.locator("#approval")).to_contain_text("Recorded.")
    assert_harmless(card)
    assert not missing(card)


def test_what_a_form_gives_back_is_text_too(enter: Visitors, desk: Cast) -> None:
    page = enter("requester", "/runs/start/")
    page.evaluate("document.querySelector('form[data-once]').noValidate = true")
    page.get_by_label("Input", exact=True).fill('[{"role": ' + ALL)
    page.get_by_label("Reason").fill(ALL)
    page.get_by_label("Key of this request").fill(SHORT)
    page.get_by_label("Instructions").fill(ALL)
    page.get_by_text("History, model and session").click()
    for label in ("Conversation history", "Previous response id", "Model", "Session id", "Session key"):
        page.get_by_label(label, exact=True).fill(ALL[:250])
    page.get_by_role("button", name="Ask for the run").click()
    expect(page.locator(".wrong").first).to_be_visible()
    assert_harmless(page)
    expect(page.get_by_label("Reason")).to_have_value(ALL)
    expect(page.get_by_label("Key of this request")).to_have_value(SHORT)


def test_what_an_address_says_is_text_or_nothing(enter: Visitors, desk: Cast) -> None:
    page = enter("auditor")
    for path in ("/?tenant=", "/?after=", "/runs/?before=", "/requests/?outcome=", "/evidence/?kind="):
        for string in (SHORT, STRINGS[1]):
            page.goto(path + quote(string))
            assert_harmless(page)


def test_the_way_back_after_sign_in_stays_here(enter: Visitors, desk: Cast) -> None:
    page = enter()
    for way in (
        "javascript:window.hit=1",
        "//elsewhere.example/",
        "\\\\elsewhere.example",
        "https://elsewhere.example",
    ):
        page.goto(f"/accounts/login/?next={way}")
        assert_harmless(page)
    page.get_by_label("Username").fill("reviewer")
    page.get_by_label("Password").fill(factories.PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Waiting for a decision")).to_be_visible()
    assert page.url.startswith(enter.origin)


def test_admin_shows_it_as_text(enter: Visitors, desk: Cast) -> None:
    desk.acme.name = HOSTILE_NAME
    desk.acme.save(update_fields=["name"])
    factories.policy(desk.acme, factories.require("run_start", 1, name=SHORT), reason=ALL)
    factories.user("root", superuser=True)
    page = enter("root")
    for path in ("", "approvals/tenant/", "approvals/endpoint/", "approvals/policyrevision/"):
        page.goto(f"/admin/{path}")
        assert page.locator("[onerror], script[src*=hit], img[src*=hit]").count() == 0, path
        assert page.evaluate("window.hit === undefined")


# --- over the wire ----------------------------------------------------------------------------------------------


def speak(run: FakeRun) -> None:
    """A server that is not our friend."""
    run.emit({"event": "message.delta", "delta": ALL})
    run.emit({"event": "reasoning.available", "text": ALL})
    run.emit({"event": "tool.started", "tool": ALL, "preview": ALL})
    run.emit({"event": "tool.completed", "tool": ALL, "duration": ALL, "error": True})
    run.emit({"event": STRINGS[1], SHORT: {ALL: ALL}})
    run.emit({"event": "message.delta", "delta": f'\u2028data: {{"event":"run.completed"}}\u2028{ALL}'})
    run.emit_raw(b'data: {"event":"run.completed","event":"run.failed"}\n\n')
    run.ask(ALL, description=ALL, pattern_key=ALL, pattern_keys=[ALL])


@pytest.mark.hermes
def test_a_hostile_server_is_shown_letter_by_letter_and_answered_once(
    sign_in: Visitors, grounds: Grounds
) -> None:
    grounds.fake.on_start = speak
    guest, queue = sign_in("guest", "/runs/start/"), sign_in("host", "/approvals/")
    guest.get_by_label("Input", exact=True).fill(ALL)
    guest.get_by_label("Reason").fill(ALL)
    guest.get_by_role("button", name="Ask for the run").click()
    guest.wait_for_url(re.compile(r"/runs/[0-9a-f-]{36}/$"))
    expect(guest.locator("#state .clock")).to_have_text("Waiting for an approval")
    assert_harmless(guest)
    queue.locator("#queue [data-card] a").first.click()
    assert_harmless(queue)
    assert not missing(queue)
    expect(queue.locator("#command")).to_contain_text(STRINGS[-1])
    queue.get_by_label("Reason, for the record").fill(ALL)
    queue.get_by_role("button", name="Allow once", exact=True).click()
    expect(queue.locator("#approval")).to_contain_text("Recorded.")
    (run,) = grounds.fake.runs.values()
    run_id = run.run_id
    expect(guest.locator("#transcript")).to_contain_text("Hermes reports an answer: once")
    run.complete(ALL)
    expect(guest.locator("#state .clock")).to_have_text("Completed")
    for page in (guest, queue):
        assert_harmless(page)
    assert not missing(guest)
    assert [seen.json()["choice"] for seen in grounds.fake.mutations(f"/v1/runs/{run_id}/approval")] == [
        "once"
    ]
    host = sign_in("host", "/evidence/")
    assert_harmless(host)
    assert not missing(host)
