"""What holds on every page: sealed headers, sign-in, the person behind a form, and how errors look."""

import re
from typing import Any

import pytest
from django.contrib.staticfiles import finders
from django.db import OperationalError
from django.test import Client
from django.urls import reverse

from approvals import setup
from approvals.evidence import OPERATOR
from approvals.models import Approval, Decision, Role
from approvals.views import queue as queue_views
from approvals.views.frame import viewer_token
from hermes_portal.middleware import CONTENT_SECURITY_POLICY
from tests import factories, scenes
from tests.factories import Cast

HTMX = {"HX-Request": "true"}


def as_(user: Any, **more: Any) -> Client:
    client = Client(**more)
    client.force_login(user)
    return client


# --- sealed ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/accounts/login/", "/nowhere/", "/healthz", "/admin/login/"])
def test_every_answer_is_sealed(cast: Cast, path: str) -> None:
    answer = as_(cast.reviewer).get(path)
    assert answer["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert "frame-ancestors 'none'" in CONTENT_SECURITY_POLICY
    assert answer["Cache-Control"] == "no-store"
    assert answer["X-Frame-Options"] == "DENY"
    assert answer["X-Content-Type-Options"] == "nosniff"


def test_only_static_files_may_be_stored(db: None) -> None:
    answer = Client().get("/static/look.css")
    answer.close()
    assert answer.status_code == 200
    assert "no-store" not in answer["Cache-Control"]


@pytest.mark.parametrize(
    "name", ["queue", "runs", "requests", "evidence", "endpoints", "start", "account_logout"]
)
def test_pages_hold_no_inline_script_style_or_handler(cast: Cast, name: str) -> None:
    everybody = factories.member("everybody", cast.acme, *Role)
    scenes.asks(scenes.running(cast.requester, cast.endpoint))
    text = as_(everybody).get(reverse(name)).content.decode()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=|javascript:|hx-on", text)


def test_htmx_is_the_pinned_major_version_without_eval(cast: Cast) -> None:
    text = as_(cast.reviewer).get("/").content.decode()
    assert "django_htmx/htmx-2.min.js" in text
    assert '"allowEval":false' in text
    assert '"includeIndicatorStyles":false' in text
    assert '"code":"409|422","swap":true' in text
    assert finders.find("django_htmx/htmx-2.min.js")


# --- sign-in (case 44) ---------------------------------------------------------------------------------------------


def test_a_page_leads_to_sign_in_and_back(cast: Cast) -> None:
    answer = Client().get("/runs/?tenant=acme")
    assert answer.status_code == 302
    assert answer["Location"] == "/accounts/login/?next=%2Fruns%2F%3Ftenant%3Dacme"


def test_a_fragment_gets_no_login_form_but_is_sent_to_the_whole_page(cast: Cast) -> None:
    answer = Client().get("/", headers=HTMX | {"HX-Current-URL": "http://testserver/approvals/?tenant=acme"})
    assert answer.status_code == 401
    assert answer["HX-Redirect"] == "/accounts/login/?next=%2Fapprovals%2F%3Ftenant%3Dacme"
    assert answer.content == b""


@pytest.mark.parametrize("headers", [{}, HTMX])
def test_the_target_of_a_post_is_not_the_way_back(cast: Cast, headers: dict[str, str]) -> None:
    answer = Client().post("/runs/start/", headers=headers)
    assert "start" not in (answer.get("Location") or answer["HX-Redirect"])


def test_a_foreign_address_is_not_the_way_back(cast: Cast) -> None:
    answer = Client().get("/", headers=HTMX | {"HX-Current-URL": "https://evil.example//evil.example/x"})
    assert answer["HX-Redirect"] == "/accounts/login/"


def test_machines_get_401(cast: Cast) -> None:
    answer = Client().get("/endpoints/ops/capabilities/", headers={"Accept": "application/json"})
    assert answer.status_code == 401


def test_sign_in_works_and_sign_up_is_closed(cast: Cast, quiet_cache: None) -> None:
    client = Client()
    answer = client.post("/accounts/login/", {"login": "reviewer", "password": factories.PASSWORD})
    assert (answer.status_code, answer["Location"]) == (302, "/")
    assert "reviewer" in client.get("/").content.decode()
    stranger = Client()
    stranger.post(
        "/accounts/signup/", {"username": "new", "password1": "Long-enough-1", "password2": "Long-enough-1"}
    )
    assert not type(cast.reviewer).objects.filter(username="new").exists()
    assert "no sign-up" in stranger.get("/accounts/signup/").content.decode()


def test_a_wrong_password_is_said_on_the_form(cast: Cast, quiet_cache: None) -> None:
    answer = Client().post("/accounts/login/", {"login": "reviewer", "password": "wrong"})
    assert "not correct" in answer.content.decode()
    assert 'role="alert"' in answer.content.decode()


def test_a_deactivated_person_is_signed_out(cast: Cast) -> None:
    client = as_(cast.reviewer)
    setup.change_user(user=cast.reviewer, active=False, by=OPERATOR)
    assert client.get("/").status_code == 302


def test_polling_does_not_keep_a_session_alive(cast: Cast) -> None:
    client = as_(cast.reviewer)
    client.get("/")
    before = client.session.get_expiry_date()
    answer = client.get("/", headers=HTMX)
    assert "sessionid" not in answer.cookies
    assert client.session.get_expiry_date() >= before


# --- whose form (case 44 c, d) ----------------------------------------------------------------------------------------


def test_a_form_drawn_for_somebody_else_decides_nothing(cast: Cast) -> None:
    card = scenes.card(scenes.asks(scenes.running(cast.requester, cast.endpoint)))
    client = as_(cast.second)
    answer = client.post(
        reverse("decide", args=[card.pk]),
        {"choice": "once", "reason": "ok", "seen": "x", "viewer": viewer_token(cast.reviewer)},
        headers=HTMX,
    )
    assert answer.status_code == 409
    assert "You are now signed in as second" in answer.content.decode()
    assert "<html" not in answer.content.decode()
    assert not Decision.objects.exists()


def test_an_old_csrf_token_is_403_with_a_sentence_and_changes_nothing(cast: Cast) -> None:
    card = scenes.card(scenes.asks(scenes.running(cast.requester, cast.endpoint)))
    client = as_(cast.reviewer, enforce_csrf_checks=True)
    answer = client.post(reverse("decide", args=[card.pk]), {"choice": "once", "reason": "ok", "seen": "x"})
    assert answer.status_code == 403
    assert "out of date" in answer.content.decode()
    assert Approval.objects.get(pk=card.pk).status == Approval.Status.PENDING


def test_after_a_sign_in_as_another_the_old_form_says_who_one_is_now(cast: Cast) -> None:
    client = as_(cast.second, enforce_csrf_checks=True)
    answer = client.post("/runs/start/", {"viewer": viewer_token(cast.reviewer)})
    assert answer.status_code == 409
    assert "You are now signed in as second" in answer.content.decode()


# --- errors ----------------------------------------------------------------------------------------------------------


def test_foreign_and_unknown_are_the_same_bytes(cast: Cast) -> None:
    card = scenes.card(scenes.asks(scenes.running(cast.requester, cast.endpoint)))
    client = as_(cast.stranger)
    foreign = client.get(reverse("approval", args=[card.pk]))
    unknown = client.get(reverse("approval", args=["00000000-0000-7000-8000-000000000000"]))
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.content == unknown.content


def test_an_error_in_a_fragment_is_no_page(cast: Cast) -> None:
    answer = as_(cast.reviewer).get("/runs/00000000-0000-7000-8000-000000000000/", headers=HTMX)
    assert answer.status_code == 404
    assert "<html" not in answer.content.decode()


def test_a_busy_database_is_503_with_a_sentence(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object) -> None:
        raise OperationalError("database is locked")

    monkeypatch.setattr(queue_views, "_page", busy)
    answer = as_(cast.reviewer).get("/")
    assert answer.status_code == 503
    assert answer["Retry-After"]
    assert "busy" in answer.content.decode()


def test_any_other_fault_is_a_page_that_promises_nothing(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(queue_views, "_page", broken)
    answer = as_(cast.reviewer, raise_request_exception=False).get("/")
    assert answer.status_code == 500
    assert "not confirmed" in answer.content.decode()
    assert "secret detail" not in answer.content.decode()


def test_a_form_over_the_limit_is_413_with_the_limits(cast: Cast, settings: Any) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 5000
    answer = as_(cast.requester).post("/runs/start/", {"input": "x" * 6000})
    assert answer.status_code == 413
    assert "Nothing was sent" in answer.content.decode()


def test_a_person_without_a_tenant_sees_an_explained_empty_page(cast: Cast) -> None:
    scenes.asks(scenes.running(cast.requester, cast.endpoint))
    text = as_(cast.nobody).get("/").content.decode()
    assert "no role in any tenant" in text
    assert "rm -rf" not in text


def test_health_needs_no_sign_in_and_says_nothing_of_anybody(cast: Cast) -> None:
    scenes.start(cast.requester, cast.endpoint)
    answer = Client().get("/healthz")
    assert answer.status_code == 200
    assert set(answer.json()) == {"status", "queue_age_seconds"}
