"""The whole path, in browsers, against a real Hermes: asked for, stopped at a command, decided, done, proven."""

import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from hermes_portal.sandbox.sandbox import Server
from tests.e2e.browsing import NARROW, Visitors, shoot, stay, stayed
from tests.e2e.conftest import Grounds
from tests.e2e.served import PROJECT, entries, until

pytestmark = [pytest.mark.browser, pytest.mark.walk, pytest.mark.hermes]

SOON = 10_000  # milliseconds; two seconds are promised, and `make bench` measures them
ENDS = 30_000
SIGNATURE_UNCHECKED = 3  # exit code of the verifier


# --- what people do -------------------------------------------------------------------------------------------


def ask_for_run(
    page: Page, script: str, endpoint: str = "ops", reason: str = "A walk through the portal."
) -> str:
    """The start form; returns the address of the run's page, on which it ends."""
    page.goto("/runs/start/")
    page.get_by_label("Input", exact=True).fill(script)
    page.get_by_label("Endpoint").select_option(endpoint)
    page.get_by_label("Reason").fill(reason)
    page.get_by_role("button", name="Ask for the run").click()
    page.wait_for_url(re.compile(r"/runs/[0-9a-f-]{36}/$"))
    stay(page)
    return page.url


def card_of(queue: Page, text: str) -> Locator:
    return queue.locator("#queue [data-card]").filter(has_text=text)


def decide(page: Page, button: str, reason: str) -> None:
    page.get_by_label("Reason, for the record").fill(reason)
    page.get_by_role("button", name=button, exact=True).click()
    expect(page.locator("#approval .note.go")).to_have_text("Recorded.")


def state(page: Page) -> Locator:
    return page.locator("#state .clock")


def open_queue(sign_in: Visitors) -> Page:
    page = sign_in("reviewer", "/approvals/")
    stay(page)
    return page


def doomed(grounds: Grounds) -> Path:
    """A directory that a run wants to delete, with a name of its own."""
    path = grounds.hermes.scratch / f"doomed-{uuid.uuid4().hex[:8]}"
    path.mkdir()
    return path


def script(path: Path) -> str:
    return f"say: A look first.\nrun: rm -rf {path}\nallowed: It is gone.\nrefused: I kept it, as I was told."


# --- the path -------------------------------------------------------------------------------------------------


def test_one_command_is_allowed_one_is_denied_and_both_are_proven(
    sign_in: Visitors, grounds: Grounds, tmp_path: Path
) -> None:
    queue = open_queue(sign_in)
    requester = sign_in("requester")
    allowed, denied = doomed(grounds), doomed(grounds)

    ask_for_run(requester, script(allowed))
    expect(state(requester)).to_have_text("Waiting for an approval", timeout=ENDS)
    expect(card_of(queue, allowed.name)).to_be_visible(timeout=SOON)
    assert stayed(queue)
    expect(queue).to_have_title(re.compile(r"^\([1-9]"))
    shoot(queue, "walk-1-queue")
    read_card(queue, allowed)
    assert allowed.exists()
    decide(queue, "Allow once", "The path is the one of the ticket.")
    expect(state(requester)).to_have_text("Completed", timeout=ENDS)
    expect(requester.locator("#transcript")).to_contain_text("It is gone.")
    assert stayed(requester)
    assert not allowed.exists()
    expect(queue.locator("#approval")).to_contain_text("Accepted by Hermes", ignore_case=True, timeout=ENDS)
    shoot(queue, "walk-3-decided")
    shoot(requester, "walk-4-run")

    queue = open_queue(sign_in)
    ask_for_run(requester, script(denied))
    card_of(queue, denied.name).get_by_role("link").click(timeout=ENDS)
    decide(queue, "Deny", "Nobody asked for this.")
    expect(state(requester)).to_have_text("Completed", timeout=ENDS)
    expect(requester.locator("#transcript")).to_contain_text("I kept it, as I was told.")
    assert denied.exists()

    prove(sign_in, grounds, tmp_path)


def read_card(page: Page, path: Path) -> None:
    """What will run, why it stopped, who asked and why, and only the choices that were offered."""
    card_of(page, path.name).get_by_role("link").click()
    expect(page.locator("#command")).to_have_text(f"rm -rf {path}")
    for words in (
        "Why it stopped",
        "The run, and what led here",
        "Commands that delete",
        "A walk through the portal.",
    ):
        expect(page.locator("#approval")).to_contain_text(words)
    expect(page.get_by_role("button", name="Deny", exact=True)).to_be_visible()
    expect(page.locator(".clock.big [data-left]")).to_have_text(re.compile(r"^[01]:\d\d$"))
    shoot(page, "walk-2-card")
    page.set_viewport_size({"width": NARROW, "height": 844})
    page.emulate_media(color_scheme="dark")
    shoot(page, "walk-2-card-390-dark")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1440, "height": 900})


def prove(sign_in: Visitors, grounds: Grounds, directory: Path) -> None:
    """The evidence page, its export, two verifiers, and a copy in which one word was changed."""
    auditor = sign_in("auditor", "/evidence/")
    for words in (
        "The path is the one of the ticket.",
        "Nobody asked for this.",
        "Accepted by Hermes",
        "Denied",
    ):
        expect(auditor.locator(".trail").first).to_contain_text(words)
    shoot(auditor, "walk-5-evidence")
    auditor.locator("#export-tenant").select_option("acme")
    with auditor.expect_download() as download:
        auditor.get_by_role("button", name="Export as JSON lines").click()
    export = directory / download.value.suggested_filename
    download.value.save_as(export)
    kinds = [entry["kind"] for entry in entries(export)]
    assert kinds.count("prompt.opened") >= 2
    assert {"approval.approved", "approval.denied", "execution.intent", "execution.applied"} <= set(kinds)

    assert grounds.portal.manage("evidence", "verify", str(export)).returncode == 0
    assert bare_verifier(export, "--chain-only").returncode == 0
    unsigned = bare_verifier(export)
    assert unsigned.returncode == SIGNATURE_UNCHECKED
    assert "cryptography is not installed" in unsigned.stdout
    tampered = directory / "tampered.jsonl"
    tampered.write_bytes(export.read_bytes().replace(b"Nobody asked for this.", b"Nobody asked for that.", 1))
    ours = grounds.portal.manage("evidence", "verify", str(tampered))
    for refused in (ours, bare_verifier(tampered, "--chain-only")):
        assert refused.returncode != 0, refused.stdout
        assert re.search(r"entry \d+", refused.stdout + refused.stderr), refused.stdout + refused.stderr


def bare_verifier(export: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The single file, with the standard library only, anywhere."""
    command = [sys.executable, "-I", "-S", str(PROJECT / "approvals/verifier.py"), *options, str(export)]
    return subprocess.run(command, cwd="/", capture_output=True, text=True, check=False)


def test_a_run_ends_as_cancelled_only_after_an_approved_stop(sign_in: Visitors, grounds: Grounds) -> None:
    queue = open_queue(sign_in)
    requester = sign_in("requester")
    gate = f"gate-{uuid.uuid4().hex[:8]}"
    run = ask_for_run(requester, f"say: I begin.\nrun: echo one\ngate: {gate}\nrun: echo two\nsay: The end.")
    expect(requester.locator("#transcript")).to_contain_text("I begin.", timeout=ENDS)
    requester.get_by_label("Reason, for the record").fill("It takes too long.")
    requester.get_by_role("button", name="Ask for a stop").click()
    requester.wait_for_url(re.compile(r"/actions/"))
    shoot(requester, "walk-6-stop-asked")
    requester.get_by_role("link", name="its transcript").click()
    requester.wait_for_url(run)
    stay(requester)
    expect(state(requester)).to_have_text("Running")

    card_of(queue, "Stop run").get_by_role("link").click(timeout=ENDS)
    decide(queue, "Approve", "It may be stopped.")
    expect(requester.locator("#stop .tag").first).to_have_text("Stop requested", timeout=ENDS)
    grounds.hermes.release(gate)  # Hermes stops between two steps of its own
    expect(state(requester)).to_have_text("Cancelled", timeout=ENDS)
    expect(requester.locator("#state")).to_contain_text("may have taken effect")
    assert stayed(requester)
    shoot(requester, "walk-7-stopped")


def test_a_request_for_which_hermes_stopped_waiting_cannot_be_approved(
    sign_in: Visitors, grounds: Grounds
) -> None:
    requester = sign_in("requester")
    target = doomed(grounds)
    ask_for_run(requester, script(target), endpoint="hasty")
    link = requester.locator("#state .trail a").first
    link.wait_for(timeout=ENDS)
    address = str(link.get_attribute("href"))
    expect(requester.locator("#transcript")).to_contain_text(
        "I kept it", timeout=ENDS
    )  # Hermes gave up by itself

    reviewer = sign_in("reviewer", address)
    expect(reviewer.locator("#approval .head .tag").last).to_have_text(re.compile("Expired|Stale"))
    expect(reviewer.locator(".side")).to_contain_text("Nothing was sent")
    expect(reviewer.get_by_role("button", name="Allow once")).to_have_count(0)
    shoot(reviewer, "walk-8-too-late")
    approval = address.strip("/").rpartition("/")[2]
    answer = late_vote(reviewer, address, seen_digest(grounds, approval))
    assert answer == 409
    assert target.exists()
    auditor = sign_in("auditor", f"{address}")
    auditor.goto("/evidence/?kind=execution.intent")
    expect(auditor.locator(f'a[href="{address}"]')).to_have_count(0)


def seen_digest(grounds: Grounds, approval: str) -> str:
    """What the form would have carried: the card no longer draws one."""
    code = (
        "import sys, django; django.setup()\n"
        "from approvals import services; from approvals.models import Approval\n"
        "print(services.seen_digest(Approval.objects.get(pk=sys.stdin.read())))"
    )
    done = grounds.portal.run_python(code, approval)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def late_vote(page: Page, address: str, seen: str) -> int:
    """The form of a page that was opened in time, sent too late."""
    token = next(cookie["value"] for cookie in page.context.cookies() if cookie["name"] == "csrftoken")
    fields: dict[str, str | float | bool] = {
        "choice": "once",
        "reason": "Still fine.",
        "seen": seen,
        "csrfmiddlewaretoken": token,
    }
    return page.request.post(f"{address}decide/", form=fields, headers={"Referer": page.url}).status


def test_a_reader_that_was_killed_leaves_a_gap_and_no_silent_success(
    sign_in: Visitors, grounds: Grounds
) -> None:
    requester = sign_in("requester")
    target = doomed(grounds)
    run = ask_for_run(requester, script(target))
    expect(state(requester)).to_have_text("Waiting for an approval", timeout=ENDS)
    link = requester.locator("#state .trail a").first
    link.wait_for()
    reviewer = sign_in("reviewer", str(link.get_attribute("href")))
    expect(reviewer.get_by_role("button", name="Allow once")).to_be_visible()

    killed = grounds.portal.pids("streams")
    assert killed
    for worker in killed:
        worker.send(signal.SIGKILL)
    expect(requester.locator("#transcript .hole")).to_contain_text("Gap", timeout=60_000)
    expect(reviewer.locator(".side")).to_contain_text(
        "not proven to be the one that is waiting", timeout=ENDS
    )
    expect(reviewer.get_by_role("button", name="Allow once")).to_have_count(0)
    expect(reviewer.get_by_role("link", name="Ask for a stop of the run")).to_be_visible()
    assert stayed(requester)
    shoot(requester, "walk-9-gap")
    shoot(reviewer, "walk-9-gap-card")

    answer_elsewhere(grounds.hermes.servers[0], requester)
    expect(state(requester)).to_have_text("Completed", timeout=60_000)
    expect(requester.locator("#state")).to_contain_text("1 gap in the events")
    expect(requester.locator("#known")).to_contain_text("broken off; the state comes from polling")
    assert target.exists()
    until(lambda: len(grounds.portal.pids("streams")) == len(killed), grounds.portal.output)
    requester.goto(run)
    expect(requester.locator("#transcript .hole")).to_contain_text("Gap")


def answer_elsewhere(server: Server, page: Page) -> None:
    """Somebody at the server itself denies what waits there."""
    run_id = page.locator("#known dd.code").first.inner_text()
    status, said = server.call("POST", f"/v1/runs/{run_id}/approval", {"choice": "deny"})
    assert status == 200, said
