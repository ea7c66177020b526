"""A look at the exact bytes behind a card: only with a reason, and only with evidence."""

import pytest
from django.test import Client
from django.urls import reverse

from approvals import services
from approvals.errors import Denied, Invalid
from approvals.models import Approval, EvidenceEntry, Kind, User
from tests import scenes
from tests.factories import Cast

SECRET = "curl -u admin:hunter2 https://x.example/\u202eend"


@pytest.fixture
def card(cast: Cast) -> Approval:
    return scenes.card(scenes.asks(scenes.running(cast.requester, cast.endpoint), SECRET))


def page(user: User, card: Approval, **data: str) -> tuple[int, str]:
    client = Client()
    client.force_login(user)
    answer = client.post(reverse("exact", args=[card.pk]), data)
    return answer.status_code, answer.content.decode()


def test_the_card_masks_and_the_look_shows(cast: Cast, card: Approval) -> None:
    client = Client()
    client.force_login(cast.reviewer)
    assert "hunter2" not in client.get(reverse("approval", args=[card.pk])).content.decode()
    assert "hunter2" not in client.get(reverse("exact", args=[card.pk])).content.decode()
    status, text = page(cast.reviewer, card, reason="Is this the test account?")
    assert status == 200
    assert "hunter2" in text
    assert "\u202e" not in text
    assert "u202e" in text


def test_a_look_is_evidence_with_its_reason_and_without_the_bytes(cast: Cast, card: Approval) -> None:
    page(cast.auditor, card, reason="Case 7.")
    entry = EvidenceEntry.objects.get(kind=Kind.DATA_VIEWED)
    assert (entry.actor, entry.approval_id) == ("user:auditor", card.pk)
    body = bytes(entry.payload.body)
    assert b"Case 7." in body
    assert b"hunter2" not in body


def test_without_a_reason_nothing_is_shown(cast: Cast, card: Approval) -> None:
    status, text = page(cast.reviewer, card, reason=" ")
    assert status == 422
    assert "hunter2" not in text
    assert not EvidenceEntry.objects.filter(kind=Kind.DATA_VIEWED).exists()


def test_without_evidence_nothing_is_shown(
    cast: Cast, card: Approval, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("the evidence table is full")

    monkeypatch.setattr("approvals.evidence.EvidencePayload.objects.create", fail)
    with pytest.raises(RuntimeError):
        services.look(approval=card, user=cast.reviewer, reason="Why not.")


@pytest.mark.parametrize("who", ["requester", "admin", "stranger", "nobody"])
def test_only_reviewers_and_auditors_look(cast: Cast, card: Approval, who: str) -> None:
    with pytest.raises(Denied):
        services.look(approval=card, user=getattr(cast, who), reason="Curious.")


def test_a_look_needs_its_reason_in_the_service_too(cast: Cast, card: Approval) -> None:
    with pytest.raises(Invalid):
        services.look(approval=card, user=cast.reviewer, reason="")
