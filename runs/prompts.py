"""The ledger of a run's prompts: what may be answered, and what ends a prompt (rules 6 and 7).

On 0.19 an answer names no request and releases the oldest one that waits. So the order and the end of every prompt
are kept here, from the events of the one reader. `let_go` says that it is proven that Hermes no longer waits for a
prompt; one whose wait is over only by our clock still stands in the way of later ones. Every function that gets a
chain runs inside its transaction, after the lock on the chain head.
"""

import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from django.conf import settings
from django.db.models import F

from approvals import evidence, services
from approvals.evidence import CLOCK, WORKER, Actor, Chain
from approvals.models import Approval, Kind
from approvals.operations import NotYet, Stale
from approvals.sweeps import each
from hermes_portal import canonical, clock, redaction, sealing
from hermes_portal.hermes.events import ApprovalRequest
from hermes_portal.ids import uuid7
from runs.models import Prompt, Run, RunEvent

Status = Prompt.Status
GONE = (Status.LAPSED, Status.VOID, Status.ANSWERED_ELSEWHERE)
OPERATION = "run_approval"
TABLE = "prompt"
TITLE = 200
EVIDENCE_CHARACTERS = 8_000  # of a redacted command; the payload of an entry holds 64 KiB
PATTERNS = 20
UNSEEN = "The portal cannot show this command, so it can only be denied."
SWEEP_SIZE = 200
TOOL_END_SLACK = timedelta(seconds=0.5)  # a tool may end this much before its wait by our reckoning
CONFIRM_PAUSE_SECONDS = 0.02
CLOCK_SLACK = timedelta(seconds=2)


# --- opening -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Received:
    """One `approval.request` as it came off the socket. `request` is None where its members were unusable."""

    request: ApprovalRequest | None
    malformed: str
    raw: bytes
    identity: str
    wait_from: datetime


def identity_of(run: Run, *, fence: int, frame: int, raw_sha256: str) -> str:
    """Our own name of a request that has none (case 10): two equal frames are two requests.

    Keyed, because a plain digest of a frame with a masked secret in it could be guessed.
    """
    parts = [str(run.endpoint_id), str(run.pk), str(fence), str(frame), raw_sha256]
    return sealing.likeness(run.tenant_id, canonical.dumps(parts))


def wait_start(
    *,
    received: datetime,
    provider_at: datetime | None,
    lag: float | None,
    elsewhere: float | None,
    started_at: datetime | None,
    early: bool,
) -> datetime:
    """When Hermes began to wait, by our clock: never later than our receipt, never before the run.

    The provider's timestamp is corrected by the smallest lag (seconds from timestamp to receipt) seen in this run
    (`lag`) or in recent runs of the endpoint (`elsewhere`). In the first moments of a reading (`early`) a backlog may
    be old, and without an earlier measurement its age cannot be told from a clock that is set apart: then the earliest
    possible instant is taken.
    """
    since = min(received, started_at) if started_at else received
    if provider_at is None:
        return since if early else received
    measured = [value for value in (lag, elsewhere) if value is not None]
    measured.append((received - provider_at).total_seconds())
    if early and elsewhere is None:
        return max(min(received, provider_at), since)
    try:
        start = provider_at + timedelta(seconds=min(measured))
    except OverflowError:  # a timestamp of a far century was among them, and the sum lies before the year 1
        return since if early else received
    if started_at and start < since - CLOCK_SLACK:
        # the provider's clock was set back meanwhile: the measurement is worthless
        return since if early else received
    return min(start, received)


def open_prompt(chain: Chain, run: Run, event: RunEvent, received: Received) -> Prompt:
    """Adds a request to the ledger and opens its approval, in one transaction.

    A request whose wait is over already, or that cannot be answered, is recorded all the same: it may still be the
    one that the next answer would release.
    """
    request = received.request
    own = [run.endpoint.open_token()]

    def shown(text: str, limit: int = 0) -> str:
        text = redaction.redact(text, own=own)
        return redaction.excerpt(text, limit) if limit else text

    identity = uuid7()
    exact = sealing.seal(received.raw, table=TABLE, tenant=_bound(run.tenant_id, identity))
    prompt = Prompt(
        id=identity,
        tenant=run.tenant,
        run=run,
        ordinal=event.ordinal,
        identity=received.identity,
        command=event.text,
        choices=[],
        exact=exact.blob,
        exact_digest=exact.digest,
        received_at=event.received_at,
        provider_at=event.provider_at,
        wait_until=received.wait_from + timedelta(seconds=run.endpoint.approval_wait),
        gaps_before=run.gaps,
    )
    if request is None:
        prompt.description = (
            f"The request could not be read ({received.malformed}); nothing can be answered to it."
        )
    else:
        prompt.request_id = request.request_id or ""
        prompt.description = shown(request.description)
        if event.text in redaction.WITHHELD:
            prompt.description = f"{UNSEEN} {prompt.description}".strip()
        prompt.pattern_key = shown(request.pattern_key, 300)
        prompt.pattern_keys = [shown(key, 300) for key in request.pattern_keys[:PATTERNS]]
        prompt.choices = [choice for choice in request.choices if _may_be_offered(choice, event)]
        prompt.allow_permanent = request.allow_permanent
        prompt.smart_denied = request.smart_denied
    prompt.save(force_insert=True)
    _append_opened(chain, prompt, run)
    if prompt.wait_until <= chain.now:
        close(
            chain,
            prompt,
            Status.LAPSED,
            "Hermes' wait was over before the portal could read the request.",
            actor=CLOCK,
        )
    elif prompt.choices:
        _open_approval(chain, prompt)
    return prompt


def _may_be_offered(choice: str, event: RunEvent) -> bool:
    """Nobody allows a command that the card cannot show (rule 3); to deny it, it need not be seen."""
    return choice == "deny" or event.text not in redaction.WITHHELD


def _append_opened(chain: Chain, prompt: Prompt, run: Run) -> None:
    chain.append(
        Kind.PROMPT_OPENED,
        actor=Actor.provider(run.endpoint),
        run=run.pk,
        prompt=prompt.pk,
        data={
            "ordinal": prompt.ordinal,
            "request_id": prompt.request_id,
            "command": redaction.excerpt(prompt.command, EVIDENCE_CHARACTERS),
            "command_characters": len(prompt.command),
            "exact_digest": prompt.exact_digest,
            "description": redaction.excerpt(prompt.description, 1000),
            "pattern_key": prompt.pattern_key,
            "choices": prompt.choices,
            "received_at": evidence.timestamp(prompt.received_at),
            "provider_at": evidence.timestamp(prompt.provider_at) if prompt.provider_at else None,
            "wait_until": evidence.timestamp(prompt.wait_until),
            "gaps_before": prompt.gaps_before,
            "redactor": redaction.VERSION,
        },
    )


def _open_approval(chain: Chain, prompt: Prompt) -> Approval | None:
    """A pending approval of `run_approval`; its requester is whoever started the run (two gates)."""
    run = prompt.run
    lifetime_ends = chain.now + settings.APPROVAL_LIFETIME
    answer_until = prompt.wait_until - timedelta(seconds=settings.WAIT_MARGIN_SECONDS)
    effective_at = min(lifetime_ends, answer_until)
    if effective_at <= chain.now:
        return None
    needs: dict[str, dict[str, Any]] = {}
    policy = None
    for choice in prompt.choices:
        policy, verdict = services.weigh(
            endpoint=run.endpoint,
            operation=OPERATION,
            requester=run.requester,
            input=answer_input(prompt, choice),
            state=facts(prompt, choice),
        )
        needs[choice] = services.DENIAL if choice == "deny" else verdict
    return services.open_approval(
        chain,
        endpoint=run.endpoint,
        operation=OPERATION,
        requester=run.requester,
        reason=run.action.reason,
        title=redaction.excerpt(" ".join(prompt.command.split()), TITLE) or "A request without a command",
        context=redaction.excerpt(f"Run “{run.title}” on {run.endpoint.endpoint_id}", TITLE),
        subject=prompt.subject,
        subject_digest=prompt.exact_digest,
        offered=prompt.choices,
        needs=needs,
        policy=policy,
        effective_at=effective_at,
        effective_why="approval_lifetime" if effective_at == lifetime_ends else "provider_wait",
        run=run.pk,
    )


def answer_input(prompt: Prompt, choice: str) -> dict[str, Any]:
    """The input of `run_approval` that a choice means. A request that has an id is never answered without it."""
    named = {"request_id": prompt.request_id} if prompt.request_id else {}
    return {"run_id": prompt.run.provider_run_id, "choice": choice, "resolve_all": False, **named}


def facts(prompt: Prompt, choice: str) -> dict[str, Any]:
    """What policy may know of a prompt: the redacted text, because verdicts are stored and exported."""
    return {
        "prompt": {
            "command": redaction.Redacted(prompt.command),
            "description": redaction.Redacted(prompt.description),
            "pattern_key": redaction.Redacted(prompt.pattern_key),
            "pattern_keys": [redaction.Redacted(key) for key in prompt.pattern_keys],
            "choice": choice,
            "choices": prompt.choices,
            "allow_permanent": prompt.allow_permanent,
            "smart_denied": prompt.smart_denied,
        }
    }


def exact_frame(prompt: Prompt) -> bytes:
    """The frame's data as received. Looking at it is a look at confidential data. Raises sealing.CannotOpen."""
    return sealing.unseal(bytes(prompt.exact), table=TABLE, tenant=_bound(prompt.tenant_id, prompt.pk))


def _bound(tenant: UUID, prompt: UUID) -> str:
    return f"{tenant}:{prompt}"


# --- may it be answered --------------------------------------------------------------------------------------------


def prove_head(prompt: Prompt, now: datetime, *, alive: bool = True) -> dict[str, Any]:
    """Rule 6: whether an answer would reach this request and no other. Returns what the evidence should hold.

    `alive=False` leaves out the liveness of the stream: a page may be looked at longer than a second. An id in the
    request stands in for the conditions "no gap" and "oldest", and for these alone. Raises Stale.
    """
    prompt = Prompt.objects.select_related("run").get(pk=prompt.pk)
    run = prompt.run
    _refuse_over(prompt, run, now)
    if not prompt.request_id:
        _refuse_unproven(prompt, run)
    age = (now - run.read_through_at).total_seconds() if run.read_through_at else None
    if alive and (age is None or age > settings.ALIVE_SECONDS):
        raise NotYet(
            "stream_not_alive",
            "The run's events are not being read right now, so a newer request may be waiting.",
        )
    return {
        "checked_at": evidence.timestamp(now),
        "read_through_at": evidence.timestamp(run.read_through_at) if run.read_through_at else None,
        "read_through_age_ms": None if age is None else round(age * 1000),
        "by_request_id": bool(prompt.request_id),
        "gaps": run.gaps,
        "fence": run.fence,
        "wait_until": evidence.timestamp(prompt.wait_until),
    }


def confirm_head(prompt: Prompt, sent_at: datetime) -> dict[str, Any]:
    """Waits until everything that had arrived when the intent was committed is read, and looks once more.

    A lapse that was in the socket at the intent is in the ledger by then. Raises Stale when the request went away,
    or when the reading does not get that far in time. An id in the request makes this needless.
    """
    if prompt.request_id:
        return {}
    limit = time.monotonic() + settings.CONFIRM_SECONDS
    while True:
        prompt = Prompt.objects.select_related("run").get(pk=prompt.pk)
        run = prompt.run
        gone = prompt.let_go or prompt.responded_at is not None or run.gaps > prompt.gaps_before
        if gone or run.stream != Run.Stream.OPEN or run.status not in Run.LIVE:
            raise Stale("head_changed", "Hermes went on without this answer just before it was to be sent.")
        if run.read_through_at is not None and run.read_through_at >= sent_at:
            return {"confirmed_through": evidence.timestamp(run.read_through_at)}
        if time.monotonic() >= limit:
            raise Stale(
                "head_not_confirmed", "The run's events could not be read up to the moment of sending."
            )
        time.sleep(CONFIRM_PAUSE_SECONDS)


def blocked(prompt: Prompt) -> Stale | None:
    """The twin of `prove_head` for pages: why it cannot be answered now, or None."""
    try:
        prove_head(prompt, clock.now(), alive=False)
    except Stale as stale:
        return stale
    return None


def _refuse_over(prompt: Prompt, run: Run, now: datetime) -> None:
    if prompt.status != Status.OPEN:
        raise Stale(
            f"prompt_{prompt.status}",
            prompt.closed_why or f"This request is {prompt.get_status_display().lower()}.",
        )
    if run.status not in Run.LIVE:
        raise Stale("run_over", f"The run is {run.get_status_display().lower()}; it no longer waits.")
    if run.stop_asked_at is not None or run.status == Run.Status.STOPPING:
        # contract 0.19 (c) 11: an answer within a second after a stop is taken, and the command runs
        raise Stale("stop_asked", "A stop was sent to this run. An answer now could still run the command.")
    if now >= prompt.wait_until - timedelta(seconds=settings.WAIT_MARGIN_SECONDS):
        raise Stale(
            "wait_over",
            f"Hermes has probably stopped waiting ({prompt.wait_until:%H:%M:%S} UTC). Nothing is sent any more.",
        )


def _refuse_unproven(prompt: Prompt, run: Run) -> None:
    if run.gaps > prompt.gaps_before:
        raise Stale(
            "gap",
            "The event stream broke off after this request, so it is not proven to be the one that is waiting.",
        )
    if run.stream != Run.Stream.OPEN:
        raise Stale(
            "stream_not_read", "The run's events are not being read, so a newer request may be waiting."
        )
    earlier = run.prompts.filter(ordinal__lt=prompt.ordinal, let_go=False).exclude(status=Status.VOID)
    for other in earlier.order_by("ordinal"):
        if other.status == Status.IN_DOUBT:
            raise Stale(
                "in_doubt",
                "It is not known whether an earlier answer of this run arrived; it could be counted twice.",
            )
        if other.status in (Status.OPEN, Status.ANSWERING):
            raise Stale("earlier_request", "An earlier request of this run must be answered first.")
        if other.status == Status.LAPSED:
            raise Stale("earlier_unproven", "Hermes may still be waiting for an earlier request of this run.")


# --- what ends a prompt --------------------------------------------------------------------------------------------


def close(
    chain: Chain,
    prompt: Prompt,
    to: str,
    why: str,
    *,
    choice: str = "",
    actor: Actor = WORKER,
) -> bool:
    """Moves a prompt on, with evidence, and ends its approval with the same sentence. False when it had moved already.

    What the stream has shown meanwhile goes before what a lost reply or a refusal lets one think: an answer that was
    reported is an answer, and a request that went away without one was not answered.
    """
    prompt.refresh_from_db()
    let_go = False
    if prompt.status == Status.ANSWERING:
        to, why, choice = _as_seen(prompt, to, why, choice)
        let_go = to in GONE  # Hermes itself refused the answer, or an event showed it
    changes: dict[str, Any] = {"let_go": prompt.let_go or let_go}
    if to != Status.IN_DOUBT:
        changes |= {"closed_at": chain.now, "closed_why": why[:500], "answered_choice": choice}
    if not prompt.moves_to(to, **changes):
        return False
    _seen(prompt.run_id)
    if to == Status.IN_DOUBT:
        return True
    chain.append(
        Kind.PROMPT_CLOSED,
        actor=actor,
        run=prompt.run_id,
        prompt=prompt.pk,
        data={
            "status": str(to),
            "why": why,
            "choice": choice,
            "ordinal": prompt.ordinal,
            "let_go": prompt.let_go,
        },
    )
    _close_approvals(chain, prompt, why, actor)
    return True


def _as_seen(prompt: Prompt, to: str, why: str, choice: str) -> tuple[str, str, str]:
    """What an answer's outcome becomes in the light of the events recorded while it was on its way."""
    reported = prompt.responded_choice
    if to == Status.IN_DOUBT and prompt.responded_at is not None:
        if choice and choice != reported:
            return (
                Status.ANSWERED_ELSEWHERE,
                f"The event stream reports another answer: {reported}.",
                reported,
            )
        return Status.ANSWERED, "The event stream reports the answer.", reported
    if to == Status.IN_DOUBT and prompt.let_go:
        return Status.VOID, "The request went away without an answer.", ""
    if to in (Status.LAPSED, Status.VOID) and prompt.responded_at is not None:
        return Status.ANSWERED_ELSEWHERE, f"It was answered elsewhere: {reported}.", reported
    return to, why, choice


def _close_approvals(chain: Chain, prompt: Prompt, why: str, actor: Actor) -> None:
    live = (Approval.Status.PENDING, Approval.Status.APPROVED)
    for approval in Approval.objects.filter(subject=prompt.subject, status__in=live).select_related("tenant"):
        late = approval.effective_at <= chain.now
        to = Approval.Status.EXPIRED if late else Approval.Status.STALE
        services.close_approval(chain, approval, to, f"{why} Nothing was sent.", actor)


def _seen(run_id: UUID) -> None:
    Run.objects.filter(pk=run_id).update(version=F("version") + 1)


def reopen(chain: Chain, prompt: Prompt) -> Approval | None:
    """Nothing was sent, and the run may still be waiting: a new pending approval (case 9 a). None when it is over."""
    prompt = Prompt.objects.select_related("run__endpoint__tenant", "run__requester", "run__action").get(
        pk=prompt.pk
    )
    if prompt.status in (Status.ANSWERING, Status.IN_DOUBT):
        if prompt.let_go:
            close(chain, prompt, Status.LAPSED, "Hermes stopped waiting.")
            return None
        prompt.move(Status.OPEN)
        _seen(prompt.run_id)
    if prompt.status != Status.OPEN or not prompt.choices or prompt.run.status not in Run.LIVE:
        return None
    if prompt.wait_until <= chain.now:
        close(chain, prompt, Status.LAPSED, "Hermes stopped waiting.", actor=CLOCK)
        return None
    pending = Approval.objects.filter(subject=prompt.subject, status=Approval.Status.PENDING).first()
    return pending or _open_approval(chain, prompt)


def responded(
    chain: Chain, run: Run, event: RunEvent, *, choice: str, resolved: int, request_id: str | None
) -> None:
    """Hermes reports an answer. Ours or not: while ours is on its way this only records, and settling decides.

    Without an id it belongs to the oldest request that has no reported answer yet. Our own answered request counts
    among these, because our reply may be settled before the report is read.
    """
    waiting = (
        run.prompts.filter(let_go=False, responded_at=None).exclude(status=Status.VOID).order_by("ordinal")
    )
    if request_id is not None:
        waiting = waiting.filter(request_id=request_id)
    found = list(waiting[: max(resolved, 0)])
    chain.append(
        Kind.PROMPT_RESPONDED,
        actor=Actor.provider(run.endpoint),
        run=run.pk,
        prompt=found[0].pk if found else None,
        data={
            "choice": choice,
            "resolved": resolved,
            "ordinal": event.ordinal,
            "prompts": [str(prompt.pk) for prompt in found],
            "not_seen_before": max(resolved, 0) - len(found),
        },
    )
    for prompt in found:
        Prompt.objects.filter(pk=prompt.pk).update(
            responded_at=event.received_at, responded_choice=choice, let_go=True
        )
        if prompt.status == Status.OPEN:
            close(
                chain,
                prompt,
                Status.ANSWERED_ELSEWHERE,
                f"It was answered elsewhere: {choice}.",
                choice=choice,
            )
        elif prompt.status == Status.IN_DOUBT:
            close(chain, prompt, Status.ANSWERED, "The event stream reports the answer.", choice=choice)


def tool_completed(chain: Chain, run: Run, event: RunEvent, *, none_running: bool, failed: bool) -> None:
    """A tool ended. When none runs any more, nothing can be waiting; requests come from running tools alone.

    With others still running, a failure at or after the end of the oldest wait is how that wait ends (contract 0.19,
    F2); otherwise nothing is concluded.
    """
    waiting = list(run.prompts.filter(let_go=False).exclude(status=Status.VOID).order_by("ordinal"))
    if not none_running:
        over = failed and waiting and waiting[0].wait_until <= event.received_at + TOOL_END_SLACK
        waiting = waiting[:1] if over else []
    for prompt in waiting:
        _went_away(
            chain, prompt, f"Hermes stopped waiting: the tool ended at {event.received_at:%H:%M:%S} UTC."
        )


def _went_away(chain: Chain, prompt: Prompt, why: str) -> None:
    Prompt.objects.filter(pk=prompt.pk).update(let_go=True)
    if prompt.status == Status.OPEN:
        close(chain, prompt, Status.LAPSED, why, actor=Actor.provider(prompt.run.endpoint))
    elif prompt.status == Status.IN_DOUBT:
        close(chain, prompt, Status.VOID, "The request went away without an answer.")


def run_over(chain: Chain, run: Run, why: str) -> None:
    """The run ended or is lost: no request of it waits any more."""
    for prompt in run.prompts.filter(status__in=Prompt.UNSETTLED).order_by("ordinal"):
        Prompt.objects.filter(pk=prompt.pk).update(let_go=True)
        if prompt.status != Status.ANSWERING:
            close(chain, prompt, Status.VOID, why)


def unsettled(run: Run) -> bool:
    """Whether a later event may still say something about a prompt."""
    return run.prompts.filter(let_go=False).exclude(status=Status.VOID).exists()


def observed(prompt: Prompt, choice: str) -> Literal["applied", "not_applied"] | None:
    """What the events prove about an answer of ours whose reply was lost. Through a gap they prove nothing."""
    if prompt.responded_at is not None:
        return "applied" if prompt.responded_choice == choice else "not_applied"
    gapless = Run.objects.filter(pk=prompt.run_id, gaps=prompt.gaps_before).exists()
    return "not_applied" if prompt.let_go and gapless else None


def lapse_overdue() -> int:
    """The sweep: prompts whose wait is over by our clock look so. Correctness never waits for it (rule 2)."""
    overdue = Prompt.objects.filter(status=Status.OPEN, wait_until__lte=clock.now()).select_related("tenant")
    return each(overdue.order_by("wait_until")[:SWEEP_SIZE], _lapse)


def _lapse(prompt: Prompt) -> bool:
    with evidence.chain(prompt.tenant) as chain:
        run = Run.objects.select_for_update().get(pk=prompt.run_id)
        closed = close(chain, prompt, Status.LAPSED, "Hermes has stopped waiting for an answer.", actor=CLOCK)
        if (
            closed
            and run.status == Run.Status.WAITING
            and not run.prompts.filter(status__in=Prompt.UNSETTLED).exists()
        ):
            # status itself goes on saying that it waits (contract 0.19 (c) 8)
            run.moves_to(Run.Status.RUNNING, status_from="event")
        return closed
