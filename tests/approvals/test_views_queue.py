"""The queue page: what it lists, how it follows, and hiding a card for oneself."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from approvals import services
from approvals.models import Approval, Decision, EvidenceEntry, Role
from hermes_portal import clock
from tests import factories, scenes
from tests.factories import Cast

HTMX = {"HX-Request": "true"}
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    '"><svg/onload=alert(1)>',
    "</script><script>alert(1)</script>",
    "{{7*7}} {% load x %}",
    '<div hx-get="/x" hx-trigger="load">',
    "<style>@import url(x)</style>",
]


@pytest.fixture
def client(cast: Cast) -> Client:
    client = Client()
    client.force_login(cast.reviewer)
    return client


def card(cast: Cast, **more: Any) -> Approval:
    return scenes.card(scenes.asks(scenes.running(cast.requester, cast.endpoint), **more))


def poll(client: Client) -> str:
    """The address of the page's next poll."""
    text = client.get("/").content.decode()
    return text.split('hx-get="')[1].split('"')[0].replace("&amp;", "&")


def test_a_waiting_command_is_listed_with_its_run_and_need(cast: Cast, client: Client) -> None:
    card(cast)
    text = client.get("/approvals/").content.decode()
    assert "rm -rf /srv/reports/2025" in text
    assert "Rebuild the yearly report" in text
    assert "1 reviewer" in text
    assert "(1) Queue" in text


def test_the_most_urgent_comes_first(cast: Cast, client: Client) -> None:
    later, sooner = card(cast, command="later"), card(cast, command="sooner")
    Approval.objects.filter(pk=sooner.pk).update(effective_at=later.effective_at - timedelta(seconds=30))
    text = client.get("/").content.decode()
    assert text.index(f'data-card="{sooner.pk}"') < text.index(f'data-card="{later.pk}"')


def test_what_has_run_out_is_neither_listed_nor_counted_before_any_sweep(cast: Cast, client: Client) -> None:
    scenes.late(card(cast))
    text = client.get("/").content.decode()
    assert "Nothing waits" in text
    assert "(1)" not in text


def test_a_poll_is_204_until_something_changes(cast: Cast, client: Client) -> None:
    card(cast)
    address = poll(client)
    still = client.get(address, headers=HTMX)
    assert still.status_code == 204
    assert int(still["Portal-Now"]) > 0
    card(cast, command="shutdown -h now")
    moved = client.get(address, headers=HTMX)
    assert moved.status_code == 200
    text = moved.content.decode()
    assert "shutdown -h now" in text
    assert "<html" not in text
    assert 'id="waiting" hx-swap-oob="true"' in text


def test_others_tenants_never_show(cast: Cast) -> None:
    card(cast)
    client = Client()
    client.force_login(cast.stranger)
    text = client.get("/?tenant=acme").content.decode()
    assert "rm -rf" not in text
    assert "(1)" not in text


def test_a_tenant_narrows_the_union(cast: Cast, client: Client) -> None:
    factories.member("reviewer", cast.other, Role.REVIEWER)
    card(cast)
    scenes.asks(scenes.running(cast.stranger, cast.other_endpoint), "mkfs /dev/sda")
    both, one = client.get("/").content.decode(), client.get("/?tenant=other").content.decode()
    assert "rm -rf" in both
    assert "mkfs" in both
    assert "rm -rf" not in one
    assert "mkfs" in one


@pytest.mark.parametrize("cursor", ["", "x", "2030-01-01T00:00:00,zz", "2030-01-01,1", ",", "9" * 5000])
def test_an_unreadable_cursor_is_the_beginning(cast: Cast, client: Client, cursor: str) -> None:
    card(cast)
    answer = client.get("/", {"after": cursor})
    assert answer.status_code == 200
    assert "rm -rf" in answer.content.decode()


def test_pages_follow_each_other_without_loss(
    cast: Cast, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("approvals.views.queue.PAGE", 2)
    cards = {str(card(cast, command=f"command {n}").pk) for n in range(5)}
    seen: list[str] = []
    address = "/"
    for _ in range(3):
        text = client.get(address).content.decode()
        seen += [part.split('"')[0] for part in text.split('data-card="')[1:]]
        if ">Next " in text:
            address = "/" + text.split(">Next ")[0].rsplit('href="', 1)[1].rstrip('"').replace("&amp;", "&")
    assert len(seen) == len(cards)
    assert set(seen) == cards


def test_hostile_text_is_text(cast: Cast, client: Client) -> None:
    for text in HOSTILE:
        scenes.asks(
            scenes.running(cast.requester, cast.endpoint, text=text, reason=text), text, description=text
        )
    page = client.get("/").content.decode()
    for text in HOSTILE:
        assert text not in page or "<" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "{{7*7}}" in page


def test_set_aside_hides_the_card_for_me_only_and_sends_nothing(cast: Cast, client: Client) -> None:
    approval = card(cast)
    before = EvidenceEntry.objects.count()
    answer = client.post(reverse("aside", args=[approval.pk]))
    assert answer.status_code == 302
    mine = client.get("/").content.decode()
    assert "rm -rf" not in mine
    assert "1 set aside by you" in mine
    assert "rm -rf" in client.get("/?aside=1").content.decode()
    other = Client()
    other.force_login(cast.second)
    assert "rm -rf" in other.get("/").content.decode()
    approval.refresh_from_db()
    assert approval.status == Approval.Status.PENDING
    assert not Decision.objects.exists()
    assert EvidenceEntry.objects.count() == before


def test_a_card_that_was_set_aside_can_come_back(cast: Cast, client: Client) -> None:
    approval = card(cast)
    client.post(reverse("aside", args=[approval.pk]))
    client.post(reverse("aside", args=[approval.pk]), {"back": "1"})
    assert "rm -rf" in client.get("/").content.decode()


def test_votes_so_far_are_counted_on_the_card(cast: Cast, client: Client) -> None:
    factories.policy(cast.acme, factories.require("run_approval", 2))
    approval = card(cast)
    services.decide(
        approval=approval, user=cast.second, choice="once", reason="ok", seen=services.seen_digest(approval)
    )
    assert "1 of 2 reviewers" in client.get("/").content.decode()


def queries(act: Callable[[], Any]) -> int:
    with CaptureQueriesContext(connection) as captured:
        act()
    return len(captured)


def test_fifty_cards_take_as_many_queries_as_five(cast: Cast, client: Client) -> None:
    run = scenes.running(cast.requester, cast.endpoint)
    for n in range(5):
        scenes.asks(run, f"command {n}")
    client.get("/")
    five = queries(lambda: client.get("/"))
    for n in range(45):
        scenes.asks(run, f"command {5 + n}")
    assert queries(lambda: client.get("/")) == five
    assert five <= 10


def test_the_clock_of_the_page_is_the_servers(cast: Cast, client: Client) -> None:
    card(cast)
    with clock.moved(timedelta(seconds=20)):
        text = client.get("/").content.decode()
    assert 'data-until="' in text
    assert "until Hermes stops waiting" in text
    assert "0:3" in text
