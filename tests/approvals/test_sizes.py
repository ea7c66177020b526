"""Texts that grow, characters that a database cannot hold, and addresses made of them: a sentence, never a fault."""

from urllib.parse import quote

import pytest
from django.test import Client

from approvals import services, setup
from approvals.errors import Invalid
from approvals.models import EvidenceEntry, Kind
from tests import factories, scenes
from tests.factories import Cast

pytestmark = pytest.mark.django_db
NO_ID = "00000000-0000-0000-0000-000000000000"


def test_a_reason_of_invisible_characters_is_refused_before_its_marks_burst_the_column(cast: Cast) -> None:
    card = scenes.card(scenes.asks(scenes.running(cast.requester, cast.endpoint)))
    reason = f"x{chr(0x200B)}{chr(0x200C)}" * 600
    with pytest.raises(Invalid, match="invisible"):
        services.decide(
            approval=card,
            user=cast.reviewer,
            choice="once",
            reason=reason,
            seen=services.seen_digest(card),
        )


def test_a_reason_with_some_hidden_characters_is_stored_with_their_marks(cast: Cast) -> None:
    card = scenes.card(scenes.asks(scenes.running(cast.requester, cast.endpoint)))
    decision = services.decide(
        approval=card,
        user=cast.reviewer,
        choice="once",
        reason=f"Looks{chr(0)} right{chr(0x200B)}.",
        seen=services.seen_digest(card),
    )
    assert decision.reason == "Looks[U+0000] right[U+200B]."


@pytest.mark.parametrize("place", ["/?tenant={}", "/runs/?tenant={}", "/endpoints/{}/capabilities/"])
def test_an_address_with_a_nul_is_not_found(cast: Cast, client: Client, place: str) -> None:
    client.force_login(cast.requester)
    assert client.get(place.format("a%00b")).status_code == 404


@pytest.mark.parametrize("place", ["/?after={}", "/runs/?before={}", "/requests/?before={}"])
@pytest.mark.parametrize("instant", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"])
def test_a_cursor_beyond_the_calendar_is_the_beginning(
    cast: Cast, client: Client, place: str, instant: str
) -> None:
    client.force_login(cast.requester)
    assert client.get(place.format(quote(f"{instant},{NO_ID}"))).status_code == 200


def test_a_policy_value_with_a_nul_is_refused_with_its_place(cast: Cast) -> None:
    condition = {"field": "input.body.model", "is": "equals", "value": f"a{chr(0)}b"}
    with pytest.raises(Invalid, match=r"rules\[0\]\.when\[0\]\.value.*NUL"):
        factories.policy(cast.acme, factories.require("run_start", when=[condition]))


def test_a_policy_of_many_long_names_still_has_its_evidence(cast: Cast) -> None:
    def rules(first: str) -> list[dict[str, object]]:
        names = (f"{first}{number:04d}{chr(0x1F9EA) * 70}" for number in range(400))
        return [factories.require(name=name) for name in names]

    setup.load_policy(tenant=cast.acme, document={"rules": rules("a")}, reason=chr(0x1F9EA) * 2000)
    setup.load_policy(tenant=cast.acme, document={"rules": rules("b")}, reason=f"x{chr(0x200B)}" * 1000)
    assert EvidenceEntry.objects.filter(kind=Kind.POLICY_CHANGED).count() == 2


def test_the_largest_prompt_under_the_wordiest_policy_still_has_its_card(cast: Cast) -> None:
    condition = {"field": "prompt.command", "is": "glob", "value": "*"}
    names = (f"{number:04d}{chr(0x1F9EA) * 70}" for number in range(300))
    factories.policy(cast.acme, *(factories.require(name=name, when=[condition] * 3) for name in names))
    run = scenes.running(cast.requester, cast.endpoint, reason=chr(0x1F9EA) * 2000)
    prompt = scenes.asks(run, f'{chr(0x1F9EA)}"\\' * 20_000, description=f"é{chr(0x1F9EA)}" * 5_000)
    card = scenes.card(prompt)
    services.decide(
        approval=card,
        user=cast.reviewer,
        choice="once",
        reason=chr(0x1F9EA) * 2000,
        seen=services.seen_digest(card),
    )
    assert EvidenceEntry.objects.filter(kind=Kind.APPROVAL_APPROVED).exists()
