"""A browser, a whole portal beside a real Hermes, and a quick portal inside this process for the pages alone."""

import asyncio
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore
from playwright.sync_api import Browser, BrowserContext, expect, sync_playwright

from approvals.models import User
from hermes_portal.sandbox import Sandbox
from tests import factories
from tests.e2e.browsing import ARGUMENTS, Visitors, sign_in_by_form
from tests.e2e.served import Portal, running, secret_file
from tests.fake_hermes import FakeHermes
from tests.services import chromium_path

LOOPBACK = "127.0.0.0/8"
WAIT = 120  # seconds that the usual Hermes of the walk waits for an answer
SHORT_WAIT = 5
PAGE_WAIT = 840  # where only pages are looked at: no deadline comes near, however slow the machine is
PEOPLE = {
    "acme": {"requester": ["requester"], "reviewer": ["reviewer"], "auditor": ["auditor"]},
    "odd": {"guest": ["requester"], "host": ["reviewer", "auditor"]},
}
HOSTILE_NAME = '<img src="/hit" onerror="window.hit=1"> {{ 7|add:35 }}'
POLICY = """
version = 1

[[rules]]
name = "Commands that delete"
operations = ["run_approval"]
effect = "require"
approvers = 1
when = [{ field = "prompt.command", is = "glob", value = "*rm -r*" }]
"""


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remembers failures, so that the fixture can take pictures of what was on the screens."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.fixture(scope="package", autouse=True)
def _loop_beside_the_database() -> Iterator[None]:
    """Playwright's synchronous interface keeps a loop running in this thread, in which Django sees no safe place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        yield


@pytest.fixture(scope="package")
def browser(_loop_beside_the_database: None) -> Iterator[Browser]:
    """Debian's Chromium, without a window and without a word to anybody."""
    expect.set_options(timeout=30_000)
    with sync_playwright() as playwright:
        asyncio.get_running_loop().set_debug(
            False
        )  # of development mode, it records a traceback for every message
        chromium = playwright.chromium.launch(executable_path=chromium_path(), args=list(ARGUMENTS))
        yield chromium
        chromium.close()


# --- a whole portal -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grounds:
    """A served portal; the Hermes that waits long, the one that waits five seconds, and the fake one."""

    portal: Portal
    hermes: Sandbox
    hasty: Sandbox
    fake: FakeHermes


@pytest.fixture(scope="package")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grounds]:
    """Set up by the commands, as a user would: one tenant with two servers, one with a hostile name and the fake."""
    directory = tmp_path_factory.mktemp("portal")
    quick = {"PORTAL_SWEEP_SECONDS": "1", "PORTAL_HUB_LEASE_SECONDS": "3"}
    with ExitStack() as stack:
        portal = stack.enter_context(running(directory, **quick))
        hermes = sandbox(stack, WAIT)
        hasty = sandbox(stack, SHORT_WAIT)
        fake = stack.enter_context(FakeHermes())
        portal.await_answer()
        set_up(portal, hermes, hasty, fake)
        yield Grounds(portal, hermes, hasty, fake)


def sandbox(stack: ExitStack, wait: float) -> Sandbox:
    """A started sandbox; nothing in it is worth an orderly end."""
    found = Sandbox(approval_timeout=wait).start()
    stack.callback(found.stop, grace=0.1)
    return found


def set_up(portal: Portal, hermes: Sandbox, hasty: Sandbox, fake: FakeHermes) -> None:
    password = secret_file(portal.directory, "password", factories.PASSWORD)
    policy = portal.directory / "policy.toml"
    policy.write_text(POLICY)
    portal.manage_all(
        ["tenant", "add", "acme", "--name", "Support operations"],
        ["tenant", "add", "odd", "--name", HOSTILE_NAME],
        endpoint(portal.directory, "ops", "acme", hermes.servers[0].url, hermes.servers[0].key, WAIT),
        endpoint(portal.directory, "hasty", "acme", hasty.servers[0].url, hasty.servers[0].key, SHORT_WAIT),
        endpoint(portal.directory, "fake", "odd", fake.url, fake.key, 60),
        *(
            ["member", "add", name, "--tenant", tenant, "--role", *roles, "--password-file", password]
            for tenant, people in PEOPLE.items()
            for name, roles in people.items()
        ),
        ["policy", "load", str(policy), "--tenant", "acme", "--reason", "The first rules."],
        ["endpoint", "check", "ops"],
    )


def endpoint(directory: Path, name: str, tenant: str, url: str, key: str, wait: int) -> list[str]:
    token = secret_file(directory, f"{name}.token", key)
    command = ["endpoint", "add", name, "--tenant", tenant, "--base-url", url, "--token-file", token]
    return [*command, "--approval-wait", str(wait), "--allow-network", LOOPBACK]


@pytest.fixture(scope="package")
def _kept_sessions() -> dict[str, Any]:
    """Sessions by user: a person signs in once, and stays signed in."""
    return {}


@pytest.fixture
def sign_in(
    browser: Browser, grounds: Grounds, _kept_sessions: dict[str, Any], request: pytest.FixtureRequest
) -> Iterator[Visitors]:
    """`sign_in("reviewer", "/")` gives a page of the whole portal. Ends with a look at what the pages did."""

    def by_form(name: str, context: BrowserContext) -> None:
        if name not in _kept_sessions:
            page = context.new_page()
            page.goto("/accounts/login/")
            sign_in_by_form(page, name)
            page.close()
            _kept_sessions[name] = context.cookies()
        context.add_cookies(_kept_sessions[name])

    visitors = Visitors(browser, grounds.portal.url, by_form)
    yield visitors
    leave(visitors, request.node)


def leave(visitors: Visitors, test: pytest.Item) -> None:
    if test.stash.get(FAILED, False):
        visitors.shoot_all(test.name.partition("[")[0])
    visitors.close()


# --- pages alone ----------------------------------------------------------------------------------------------


@pytest.fixture
def hermes() -> Iterator[FakeHermes]:
    with FakeHermes() as fake:
        yield fake


@pytest.fixture
def desk(transactional_db: None, hermes: FakeHermes) -> factories.Cast:
    """The cast, whose endpoint is the fake provider; no worker runs, so that nothing moves by itself."""
    return factories.cast(
        base_url=hermes.url, token=hermes.key, allow_networks=(LOOPBACK,), approval_wait=PAGE_WAIT
    )


@pytest.fixture
def enter(
    browser: Browser, live_server: Any, desk: factories.Cast, request: pytest.FixtureRequest
) -> Iterator[Visitors]:
    """`enter("reviewer", "/")` gives a page of a portal in this process. Ends with a look at what the pages did."""
    visitors = Visitors(browser, live_server.url, with_session(live_server.url))
    yield visitors
    leave(visitors, request.node)


def with_session(origin: str) -> Callable[[str, BrowserContext], None]:
    """Signs in by the database: the sign-in form has tests of its own."""

    def sign_in(name: str, context: BrowserContext) -> None:
        user = User.objects.get(username=name)
        session = SessionStore()
        session[SESSION_KEY] = str(user.pk)
        session[BACKEND_SESSION_KEY] = "allauth.account.auth_backends.AuthenticationBackend"
        session[HASH_SESSION_KEY] = user.get_session_auth_hash()
        session.save()
        context.add_cookies([{"name": "sessionid", "value": str(session.session_key), "url": origin}])

    return sign_in
