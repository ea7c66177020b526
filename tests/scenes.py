"""Scenes for page tests: runs with transcripts and prompts, written the way the hub writes them, without a hub."""

import secrets
from datetime import timedelta
from typing import Any

from approvals import services
from approvals.evidence import chain
from approvals.models import Action, Approval, Endpoint, User
from hermes_portal import clock, redaction
from hermes_portal.hermes.events import ApprovalRequest
from runs import prompts
from runs.models import Prompt, Run, RunEvent

DIGEST = "0" * 64


def start(
    user: User, endpoint: Endpoint, text: str = "Rebuild the yearly report", reason: str = "SUP-2214"
) -> Action:
    """A run that was asked for and not sent yet."""
    return services.request(
        user=user,
        endpoint=endpoint,
        operation="run_start",
        raw={"body": {"input": text}},
        reason=reason,
        key=f"scene-{secrets.token_hex(8)}",
    ).action


def running(user: User, endpoint: Endpoint, **more: Any) -> Run:
    """A run with a receipt whose events are being read."""
    run = Run.objects.get(action=start(user, endpoint, **more))
    now = clock.now()
    Run.objects.filter(pk=run.pk).update(
        status=Run.Status.RUNNING,
        provider_run_id=f"run_{secrets.token_hex(16)}",
        started_at=now,
        stream=Run.Stream.OPEN,
        read_through_at=now,
        version=1,
    )
    run.refresh_from_db()
    return run


def event(run: Run, kind: str, text: str = "", **data: Any) -> RunEvent:
    """The next event of a run."""
    now = clock.now()
    row = RunEvent.objects.create(
        run=run,
        tenant=run.tenant,
        ordinal=run.next_ordinal,
        fence=run.fence,
        kind=kind,
        received_at=now,
        last_received_at=now,
        text=redaction.redact(text),
        data=data,
        raw_digest=DIGEST,
    )
    run.next_ordinal += 1
    run.version += 1
    run.save(update_fields=["next_ordinal", "version"])
    return row


def asks(
    run: Run,
    command: str = "rm -rf /srv/reports/2025",
    *,
    description: str = "delete in root path",
    choices: tuple[str, ...] = ("once", "session", "always", "deny"),
) -> Prompt:
    """Hermes stops at a command: a prompt and its pending approval."""
    request = ApprovalRequest(
        command=command,
        description=description,
        pattern_key=description,
        pattern_keys=(description,),
        choices=choices,
        allow_permanent="always" in choices,
        smart_denied=False,
        request_id=None,
    )
    raw = f"frame {secrets.token_hex(8)} {command}".encode()
    row = event(run, "approval.request", command)
    with chain(run.tenant) as link:
        received = prompts.Received(
            request=request,
            malformed="",
            raw=raw,
            identity=prompts.identity_of(run, fence=run.fence, frame=row.ordinal, raw_sha256=DIGEST),
            wait_from=clock.now(),
        )
        prompt = prompts.open_prompt(link, run, row, received)
    Run.objects.filter(pk=run.pk).update(status=Run.Status.WAITING)
    run.refresh_from_db()
    return prompt


def card(prompt: Prompt) -> Approval:
    """The approval about a prompt."""
    return Approval.objects.get(subject=prompt.subject)


def late(approval: Approval, by: timedelta = timedelta(minutes=16)) -> Approval:
    """Makes an approval one whose time is over, as if it had been opened earlier."""
    before = approval.created_at - by
    Approval.objects.filter(pk=approval.pk).update(
        created_at=before, effective_at=before + (approval.effective_at - approval.created_at)
    )
    approval.refresh_from_db()
    return approval
