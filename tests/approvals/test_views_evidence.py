"""Evidence pages and the export that an auditor takes home."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from approvals.evidence import OPERATOR, chain
from approvals.models import EvidenceEntry, EvidencePayload, Kind, Role
from tests import factories, scenes
from tests.factories import Cast


def as_(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


def listed(user: Any, **query: Any) -> str:
    return as_(user).get(reverse("evidence"), query).content.decode()


def exported(answer: Any) -> list[bytes]:
    return b"".join(answer.streaming_content).splitlines()


def test_an_auditor_sees_the_chain_newest_first(cast: Cast) -> None:
    scenes.start(cast.requester, cast.endpoint, reason="SUP-2214")
    text = listed(cast.auditor)
    assert ">SUP-2214<" in text
    newest, first = EvidenceEntry.objects.filter(tenant=cast.acme).order_by("-seq").first(), 1
    assert newest is not None
    assert text.index(f"entry {newest.seq} ") < text.index(f"entry {first} ")


@pytest.mark.parametrize("who", ["requester", "reviewer", "admin", "nobody"])
def test_other_roles_see_an_explained_empty_page(cast: Cast, who: str) -> None:
    scenes.start(cast.requester, cast.endpoint, reason="SUP-2214")
    text = listed(getattr(cast, who))
    assert "role auditor" in text
    assert "SUP-2214" not in text


def test_another_tenants_auditor_sees_nothing_of_it(cast: Cast) -> None:
    scenes.start(cast.requester, cast.endpoint, reason="SUP-2214")
    assert "SUP-2214" not in listed(cast.stranger)
    assert "SUP-2214" not in listed(cast.stranger, tenant="acme")


def test_a_kind_narrows_the_list(cast: Cast) -> None:
    scenes.start(cast.requester, cast.endpoint, reason="SUP-2214")
    assert "SUP-2214" in listed(cast.auditor, kind=Kind.ACTION_REQUESTED)
    assert "SUP-2214" not in listed(cast.auditor, kind=Kind.TENANT_ADDED)


@pytest.mark.parametrize(
    "query", [{"kind": "x"}, {"before": "x"}, {"before": "-1"}, {"before": "9" * 400}, {"tenant": "%"}]
)
def test_a_filter_that_is_not_known_is_no_filter(cast: Cast, query: dict[str, str]) -> None:
    scenes.start(cast.requester, cast.endpoint, reason="SUP-2214")
    answer = as_(cast.auditor).get(reverse("evidence"), query)
    assert answer.status_code == 200
    assert "SUP-2214" in answer.content.decode()


def test_the_list_is_paged_by_key(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("approvals.views.evidence.PAGE", 3)
    text = listed(cast.auditor)
    assert text.count("<details>") == 3
    before = text.split("?before=")[1].split('"')[0]
    older = listed(cast.auditor, before=before)
    assert "entry 1 " in older or "Older" in older


def test_an_erased_payload_leaves_its_entry(cast: Cast) -> None:
    scenes.start(cast.requester, cast.endpoint, reason="SUP-2214")
    entry = EvidenceEntry.objects.get(kind=Kind.ACTION_REQUESTED)
    with chain(cast.acme) as link:
        link.append(Kind.PAYLOAD_ERASED, actor=OPERATOR, seq=str(entry.seq))
        EvidencePayload.objects.filter(entry=entry).delete()
    text = listed(cast.auditor)
    assert "payload erased" in text
    assert entry.digest in text
    assert "SUP-2214" not in text


def counted(act: Callable[[], Any]) -> int:
    """Queries of an act."""
    with CaptureQueriesContext(connection) as captured:
        act()
    return len(captured)


def test_many_entries_take_as_many_queries_as_few(cast: Cast) -> None:
    client = as_(cast.auditor)
    client.get(reverse("evidence"))
    few = counted(lambda: client.get(reverse("evidence")))
    for n in range(20):
        scenes.start(cast.requester, cast.endpoint, text=f"{n}")
    assert counted(lambda: client.get(reverse("evidence"))) == few <= 12


def test_an_export_is_a_file_of_the_stored_bytes_with_a_signed_end_and_an_entry_itself(cast: Cast) -> None:
    scenes.start(cast.requester, cast.endpoint)
    answer = as_(cast.auditor).post(reverse("export"), {"tenant": "acme"})
    lines = exported(answer)
    assert answer.status_code == 200
    assert answer["Content-Disposition"].startswith('attachment; filename="evidence-acme-')
    assert json.loads(lines[0])["seq"] == 1
    assert "signature" in json.loads(lines[-1])
    assert EvidenceEntry.objects.get(kind=Kind.EVIDENCE_EXPORTED).actor == "user:auditor"


def test_only_an_auditor_of_that_tenant_exports(cast: Cast) -> None:
    for person in (cast.requester, cast.reviewer, cast.admin, cast.stranger, cast.nobody):
        answer = as_(person).post(reverse("export"), {"tenant": "acme"})
        assert answer.status_code == 422
    unknown = as_(cast.stranger).post(reverse("export"), {"tenant": "nowhere"})
    foreign = as_(cast.stranger).post(reverse("export"), {"tenant": "acme"})
    assert unknown.content.count(b"not one of the available choices") == foreign.content.count(
        b"not one of the available choices"
    )
    assert not EvidenceEntry.objects.filter(kind=Kind.EVIDENCE_EXPORTED).exists()


def test_a_time_that_can_not_be_read_is_said_beside_its_field(cast: Cast) -> None:
    answer = as_(cast.auditor).post(reverse("export"), {"tenant": "acme", "since": "yesterday"})
    assert answer.status_code == 422
    assert "Write the time as" in answer.content.decode()


# --- endpoints -------------------------------------------------------------------------------------------------------


def test_endpoints_of_ones_tenants_are_listed(cast: Cast) -> None:
    text = as_(cast.requester).get(reverse("endpoints")).content.decode()
    assert "ops" in text
    assert "theirs" not in text


def test_the_thirteen_capabilities_as_a_page_and_as_json(cast: Cast) -> None:
    client, address = as_(cast.requester), reverse("capabilities", args=["ops"])
    text = client.get(address).content.decode()
    found = client.get(address, headers={"Accept": "application/json"}).json()
    ids = [row["capability_id"] for row in found["capabilities"]]
    assert len(ids) == len(set(ids)) == 13
    assert all(identity in text for identity in ids)
    assert "declared, not measured" in text


def test_a_member_of_another_tenant_gets_404_for_capabilities(cast: Cast) -> None:
    client = as_(cast.stranger)
    foreign, unknown = (client.get(reverse("capabilities", args=[name])) for name in ("ops", "nothing"))
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.content == unknown.content


def test_an_endpoint_id_is_not_a_path(cast: Cast) -> None:
    factories.member("requester", cast.acme, Role.REQUESTER)
    assert as_(cast.requester).get("/endpoints/..%2fops/capabilities/").status_code == 404
