"""Every address, for everybody: own members by role, another tenant's, a person without a tenant, a superuser, nobody.

An address without a row fails the test, so that a new one is thought about (case 13, rule 12).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.apps import apps
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from approvals.models import Action, Approval, Decision, Execution
from hermes_portal import clock
from tests import factories, scenes
from tests.factories import Cast

OWN = ("requester", "reviewer", "auditor", "admin")
OUTSIDE = ("stranger", "nobody", "superuser")
SIGNED_IN = (*OWN, *OUTSIDE)
NOTHING = "00000000-0000-7000-8000-000000000000"

Expected = Mapping[str, int]


def everybody(status: int) -> dict[str, int]:
    return dict.fromkeys(SIGNED_IN, status)


def members(status: int, **other: int) -> dict[str, int]:
    """Own members get `status`, except those named; whoever is outside gets 404."""
    return dict.fromkeys(OWN, status) | dict.fromkeys(OUTSIDE, 404) | other


@dataclass(frozen=True)
class Row:
    """What one method of one address answers. `anonymous` is the sign-in page unless the address is open."""

    expected: Expected
    method: str = "get"
    data: Mapping[str, str] = field(default_factory=dict)
    anonymous: int = 302
    object: str = ""


SEEN = {"reason": "x", "seen": "0" * 64}
TABLE: dict[str, tuple[Row, ...]] = {
    "": (Row(everybody(200)),),
    "approvals/": (Row(everybody(200)),),
    "approvals/<uuid:pk>/": (Row(members(200), object="card"),),
    "approvals/<uuid:pk>/decide/": (
        Row(members(403, reviewer=409), "post", SEEN | {"choice": "once"}, object="card"),
        Row(members(403, reviewer=409), "post", SEEN | {"verdict": "deny"}, object="card"),
        Row(everybody(405), object="card"),
    ),
    "approvals/<uuid:pk>/withdraw/": (
        Row(members(403), "post", object="card"),
        Row(everybody(405), object="card"),
    ),
    "approvals/<uuid:pk>/revoke/": (
        Row(members(403, reviewer=409), "post", {"reason": "x"}, object="card"),
        Row(everybody(405), object="card"),
    ),
    "approvals/<uuid:pk>/exact/": (
        Row(members(200), object="card"),
        Row(members(403, reviewer=200, auditor=200), "post", {"reason": "x"}, object="card"),
    ),
    "approvals/<uuid:pk>/aside/": (
        Row(members(302), "post", object="card"),
        Row(everybody(405), object="card"),
    ),
    "requests/": (Row(everybody(200)),),
    "actions/<uuid:pk>/": (Row(members(200), object="unknown"),),
    "actions/<uuid:pk>/close/": (
        Row(members(403, reviewer=422, admin=422), "post", object="unknown"),
        Row(everybody(405), object="unknown"),
    ),
    "evidence/": (Row(everybody(200)),),
    "evidence/export/": (
        Row(everybody(422) | {"auditor": 200}, "post", {"tenant": "acme"}),
        Row(everybody(405)),
    ),
    "endpoints/": (Row(everybody(200)),),
    "endpoints/<str:endpoint_id>/capabilities/": (Row(members(200), object="endpoint"),),
    "healthz": (Row(everybody(200), anonymous=200),),
    "runs/": (Row(everybody(200)),),
    "runs/start/": (Row(everybody(200)), Row(everybody(422), "post", {"endpoint": "theirs-not"})),
    "runs/practice/": (Row(everybody(404), "post"), Row(everybody(405))),
    "runs/<uuid:pk>/": (Row(members(200), object="run"),),
    "runs/<uuid:pk>/stop/": (
        Row(members(403, requester=422), "post", object="run"),
        Row(everybody(405), object="run"),
    ),
    "accounts/login/": (Row(everybody(302), anonymous=200),),
    "accounts/logout/": (Row(everybody(200)),),
    "accounts/inactive/": (Row(everybody(200), anonymous=200),),
    "accounts/signup/": (Row(everybody(302), anonymous=200),),
    "accounts/reauthenticate/": (Row(everybody(200)),),
    "accounts/password/change/": (Row(everybody(200)),),
}
# Django admin: whoever is no admin of a tenant is refused everywhere; an admin's own pages are tested with the admin.
ADMIN = "admin/"
REFUSED = 403


@dataclass(frozen=True)
class Scene:
    """One of everything in acme, and everybody's client."""

    ids: Mapping[str, str]
    clients: Mapping[str, Client]
    anonymous: Client


@pytest.fixture
def scene(cast: Cast, settings: Any) -> Scene:
    settings.PORTAL_DEMO = False
    run = scenes.running(cast.requester, cast.endpoint)
    card = scenes.card(scenes.asks(run))
    people = {name: getattr(cast, name) for name in SIGNED_IN if name != "superuser"}
    people["superuser"] = factories.user("root", superuser=True)
    clients = {name: Client() for name in people}
    for name, client in clients.items():
        client.force_login(people[name])
    unknown = _unknown(cast)
    ids = {
        "card": str(card.pk),
        "run": str(run.pk),
        "unknown": str(unknown.pk),
        "endpoint": cast.endpoint.endpoint_id,
    }
    return Scene(ids, clients, Client())


def _unknown(cast: Cast) -> Action:
    action, now = scenes.start(cast.requester, cast.endpoint, text="Lost"), clock.now()
    Execution.objects.create(
        action=action,
        tenant=action.tenant,
        lane=action.lane,
        status=Execution.Status.UNKNOWN,
        lease_until=now,
        worker="test",
        claimed_at=now,
    )
    return action


def routes(
    patterns: list[URLPattern | URLResolver] | None = None, prefix: str = ""
) -> Iterator[tuple[str, str]]:
    """Every address of the project with its name."""
    for one in get_resolver().url_patterns if patterns is None else patterns:
        where = prefix + str(one.pattern)
        if isinstance(one, URLResolver):
            yield from routes(one.url_patterns, where)
        else:
            yield where, one.name or ""


def rows() -> Iterator[tuple[str, Row]]:
    """Every row of the table with its route."""
    for route, those in TABLE.items():
        for row in those:
            yield route, row


def address(route: str, identity: str) -> str:
    return "/" + re.sub(r"<[^>]+>", identity, route)


def send(client: Client, row: Row, path: str, **headers: str) -> Any:
    return getattr(client, row.method)(path, dict(row.data), headers=headers)


def test_every_address_has_a_row_and_every_row_an_address() -> None:
    found = {route for route, _ in routes() if not route.startswith(ADMIN)}
    assert found == set(TABLE)


def test_each_person_gets_exactly_what_the_table_says(scene: Scene) -> None:
    got, wanted = {}, {}
    for route, row in rows():
        path = address(route, scene.ids.get(row.object, ""))
        for name in SIGNED_IN:
            got[row.method, path, name] = send(scene.clients[name], row, path).status_code
            wanted[row.method, path, name] = row.expected[name]
    assert got == wanted


def test_who_is_not_signed_in_is_sent_to_sign_in(scene: Scene) -> None:
    for route, row in rows():
        path = address(route, scene.ids.get(row.object, NOTHING))
        answer = send(scene.anonymous, row, path)
        assert answer.status_code == row.anonymous, (row.method, path)
        if not route.startswith("accounts/") and row.anonymous == 302:
            assert answer["Location"].startswith("/accounts/login/")
            fragment = send(scene.anonymous, row, path, **{"HX-Request": "true"})
            assert fragment.status_code == 401
            assert fragment.content == b""


@pytest.mark.parametrize("htmx", [{}, {"HX-Request": "true"}])
def test_foreign_and_unknown_are_the_same_bytes(scene: Scene, htmx: dict[str, str]) -> None:
    for route, row in rows():
        if not row.object:
            continue
        for name in OUTSIDE:
            foreign = send(scene.clients[name], row, address(route, scene.ids[row.object]), **htmx)
            unknown = send(scene.clients[name], row, address(route, NOTHING), **htmx)
            assert foreign.status_code == unknown.status_code, (route, name)
            assert foreign.content == unknown.content, (route, name)
            assert dict(foreign.headers) == dict(unknown.headers), (route, name)


def test_an_export_of_a_foreign_and_an_unknown_tenant_say_the_same(scene: Scene) -> None:
    def said(slug: str) -> str:
        text = scene.clients["stranger"].post("/evidence/export/", {"tenant": slug}).content.decode()
        return text.split("Export</h2>")[1].split('class="wrong"')[1].split("</span>")[0]

    assert said("acme") == said("nowhere")


def test_nothing_of_acme_is_on_any_list_of_an_outsider(scene: Scene) -> None:
    for route, row in rows():
        if row.method != "get" or row.object:
            continue
        for name in OUTSIDE:
            text = scene.clients[name].get(address(route, "")).content.decode()
            assert not any(identity in text for key, identity in scene.ids.items() if key != "endpoint")
            assert "yearly report" not in text
            assert ">ops<" not in text


def test_nothing_in_the_table_changed_anything(scene: Scene) -> None:
    """The rows were chosen so: every refusal really refused."""
    for route, row in rows():
        for name in SIGNED_IN:
            send(scene.clients[name], row, address(route, scene.ids.get(row.object, "")))
    assert not Decision.objects.exists()
    assert Approval.objects.get().status == Approval.Status.PENDING
    assert Action.objects.filter(operation="run_stop").count() == 0


# --- Django admin --------------------------------------------------------------------------------------------------


def admin_paths(identity: str) -> list[str]:
    """Every address of the admin, with an id in place of each part that varies."""
    found = []
    for route, _ in routes():
        if route.startswith(ADMIN) and "(?P" not in route:
            found.append(address(route, identity))
    return found


@pytest.mark.parametrize("name", ["requester", "reviewer", "auditor", "nobody"])
def test_who_is_no_admin_is_refused_everywhere_in_the_admin(scene: Scene, name: str) -> None:
    for path in admin_paths(NOTHING):
        answer = scene.clients[name].get(path)
        own_door = path.endswith(("/logout/", "/login/", "/jsi18n/"))
        assert answer.status_code == REFUSED or (own_door and answer.status_code in (302, 405, 403)), path


def test_who_is_not_signed_in_never_reaches_the_admin(scene: Scene) -> None:
    for path in admin_paths(NOTHING):
        answer = scene.anonymous.get(path)
        assert (answer.status_code, answer["Location"][:16]) == (302, "/accounts/login/"), path


def test_an_admin_gets_the_same_404_for_foreign_and_unknown_rows(scene: Scene, cast: Cast) -> None:
    client, tried = scene.clients["admin"], 0
    for route, name in routes():
        model = re.fullmatch(r"(approvals_\w+)_(change|history)", name)
        if not route.startswith(ADMIN) or not model:
            continue
        row = (
            apps.get_model(model[1].replace("_", ".", 1))
            ._default_manager.filter(**_foreign(model[1], cast))
            .first()
        )
        if row is None:
            continue
        tried += 1
        foreign, unknown = client.get(address(route, str(row.pk))), client.get(address(route, NOTHING))
        assert foreign.status_code == unknown.status_code == 404, route
        assert foreign.content == unknown.content
    assert tried >= 4


def _foreign(model: str, cast: Cast) -> dict[str, Any]:
    """How to find a row of the other tenant."""
    if model == "approvals_tenant":
        return {"pk": cast.other.pk}
    if model == "approvals_user":
        return {"pk": cast.stranger.pk}
    return {"tenant": cast.other}
