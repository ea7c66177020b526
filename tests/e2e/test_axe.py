"""Every page for everybody: no serious finding of axe, no sideways scrolling, and a picture of each to look at."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.e2e import scenery
from tests.e2e.browsing import HEIGHTS, NARROW, WIDE, Visitors, shoot
from tests.factories import Cast
from tests.fake_hermes import FakeHermes

pytestmark = pytest.mark.browser

AXE = Axe().axe_script
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
OPTIONS = {"resultTypes": ["violations"], "runOnly": RULES}
OVERFLOW = """() => {
  const width = document.documentElement.clientWidth;
  return document.documentElement.scrollWidth > width ? Array.from(document.querySelectorAll('main *'))
    .filter((node) => node.getBoundingClientRect().right > width + 1)
    .map((node) => node.outerHTML.slice(0, 120)).slice(0, 3) : [];
}"""


def findings(page: Page, *, only: str = "") -> list[str]:
    """The serious and critical ones, each with the first element that it is about."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    options = OPTIONS | ({"runOnly": {"type": "rule", "values": [only]}} if only else {})
    found = page.evaluate("options => axe.run(options).then(found => found.violations)", options)
    return [
        f"{one['impact']} {one['id']}: {one['nodes'][0]['html'][:160]} {one['nodes'][0]['failureSummary'][:200]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


def misplaced(page: Page) -> list[str]:
    return [f"sticks out: {html}" for html in page.evaluate(OVERFLOW)]


def look_at(page: Page, name: str) -> list[str]:
    """What is wrong with a page at both widths and in both colours; of these only the contrast is different."""
    wrong = []
    for width in (WIDE, NARROW):
        page.set_viewport_size({"width": width, "height": HEIGHTS[width]})
        page.emulate_media(color_scheme="light")
        wrong += [*findings(page), *misplaced(page)]
        shoot(page, f"{name}-{width}-light")
        page.emulate_media(color_scheme="dark")
        wrong += findings(page, only="color-contrast") if width == WIDE else []
        shoot(page, f"{name}-{width}-dark")
    return [f"{name}: {finding}" for finding in wrong]


def test_every_page_is_accessible_and_fits(enter: Visitors, desk: Cast, hermes: FakeHermes) -> None:
    places = scenery.build(desk, hermes)
    pages = {who: enter(who) for who in {place.who for place in places}}
    wrong = []
    for place in places:
        page = pages[place.who]
        page.goto(place.path)
        wrong += look_at(page, place.name)
    assert not wrong, "\n".join(wrong)


def test_what_is_written_wrong_is_announced_accessibly(enter: Visitors, desk: Cast) -> None:
    page = enter("requester", "/runs/start/", width=NARROW)
    page.get_by_label("Input", exact=True).fill('[{"role": "user"')
    page.get_by_label("Reason").fill("x" * 2001)
    page.evaluate("document.querySelector('form[data-once]').noValidate = true")
    page.get_by_role("button", name="Ask for the run").click()
    page.locator(".wrong").first.wait_for()
    assert not findings(page)
    assert not misplaced(page)
    shoot(page, "start-wrong")
