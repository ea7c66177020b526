"""People with browsers: sign-in, widths and colours, and a watch over everything that a page does on its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Dialog, Page, Request, WebError

from tests.factories import PASSWORD

SCREENSHOTS = Path(__file__).resolve().parents[2] / "screenshots"
ARGUMENTS = (
    "--no-sandbox",  # the tests may run as root
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-sync",
    "--metrics-recording-only",
    "--no-first-run",
    "--no-pings",
)
WIDE, NARROW = 1440, 390
HEIGHTS = {WIDE: 900, NARROW: 844}
HIT = "/hit"  # the address that every hostile string of the tests tries to reach
# Chromium's line about an answer that is not 2xx, and htmx' about a poll that a decision ended. What a page makes of
# such answers is tested where it matters.
USUAL_NOISE = ("Failed to load resource", "htmx:afterRequest", "htmx:sendAbort")


@dataclass
class Watch:
    """What pages did that no page of ours may do: script errors, blocked content, requests elsewhere, dialogs."""

    origin: str
    noise: list[str] = field(default_factory=lambda: list(USUAL_NOISE))
    seen: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def over(self, context: BrowserContext) -> None:
        context.on("console", self.console)
        context.on("weberror", self.error)
        context.on("request", self.request)
        context.on("dialog", self.dialog)

    def console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(tuple(self.noise)):
            self.seen.append(f"console {message.type}: {message.text}")

    def error(self, error: WebError) -> None:
        self.seen.append(f"uncaught: {error.error}")

    def request(self, request: Request) -> None:
        self.requests.append(request.url)
        if not request.url.startswith(self.origin) or urlsplit(request.url).path == HIT:
            self.seen.append(f"request: {request.url}")

    def dialog(self, dialog: Dialog) -> None:
        self.seen.append(f"dialog: {dialog.message}")
        dialog.dismiss()


Storage = Callable[[str, BrowserContext], None]


class Visitors:
    """Everybody who uses the portal in one test, each with a browser context of their own."""

    def __init__(self, browser: Browser, origin: str, sign_in: Storage) -> None:
        self.browser, self.origin = browser, origin
        self.watch = Watch(origin)
        self._sign_in = sign_in
        self.contexts: list[BrowserContext] = []

    def __call__(
        self,
        name: str = "",
        path: str = "",
        *,
        width: int = WIDE,
        scheme: Literal["light", "dark"] = "light",
        javascript: bool = True,
    ) -> Page:
        """A page of a signed-in person (of nobody without a name), on `path` if one is given."""
        context = self.browser.new_context(
            base_url=self.origin,
            viewport={"width": width, "height": HEIGHTS[width]},
            color_scheme=scheme,
            java_script_enabled=javascript,
            locale="en-GB",
            timezone_id="UTC",
        )
        self.contexts.append(context)
        self.watch.over(context)
        if name:
            self._sign_in(name, context)
        page = context.new_page()
        if path:
            page.goto(path)
        return page

    def shoot_all(self, name: str) -> None:
        """What everybody looks at now, for whoever has to find out why a test failed."""
        for number, page in enumerate(page for context in self.contexts for page in context.pages):
            shoot(page, f"failed-{name}-{number}")

    def close(self) -> None:
        """Ends all contexts, then says what they did that they may not."""
        for context in self.contexts:
            context.close()
        self.contexts.clear()
        assert not self.watch.seen, "\n".join(self.watch.seen)


def sign_in_by_form(page: Page, name: str, password: str = PASSWORD) -> None:
    """The way a person does it, from the sign-in page."""
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(lambda url: "/accounts/login/" not in url)


def shoot(page: Page, name: str) -> None:
    """A picture of the whole page. Without Playwright's own style element, which our policy would refuse."""
    SCREENSHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True, caret="initial", animations="allow")


def stay(page: Page) -> None:
    """Marks the document, so that `stayed` can tell a reload."""
    page.evaluate("document.documentElement.dataset.stayed = 'yes'")


def stayed(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.dataset.stayed === 'yes'"))
