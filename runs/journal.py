"""What a hub writes about the runs it follows: claims, batches of events, gaps, ends, polled states.

Every write names the fence under which the run was claimed; after a takeover the old owner's writes find nothing
(case 23). Everything may be done twice: rows are idempotent by (run, ordinal), the rest looks before it writes.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.db.models import Case, F, Q, QuerySet, Value, When

from approvals import evidence
from approvals.evidence import WORKER, Actor, Chain
from approvals.models import EndpointStatus, Kind, Tenant
from hermes_portal import canonical, clock, redaction, sealing
from hermes_portal.hermes.client import Target
from hermes_portal.hermes.events import RESPONDED, TERMINAL
from runs import prompts
from runs.models import Hub, Prompt, Run, RunEvent
from runs.reading import TOOL_COMPLETED, Control, Row

Status = Run.Status
Stream = Run.Stream
EARLY_SECONDS: Final = 1.0
"""How long after its opening a stream may still be giving a backlog."""
RECENT_RUNS: Final = 20
CLAIMS_AT_ONCE: Final = 100
UNREADABLE_SECONDS: Final = 60.0
TEXT_LIMIT: Final = 300

CAUSES: Final[Mapping[str, str]] = {
    "consumer_lost": "The process that read the events was lost.",
    "portal_stopped": "The portal was stopped in good order.",
    "connection_lost": "The connection to the event stream broke off.",
    "stream_silent": "The event stream went silent; not even a keepalive came.",
    "ended_without_terminal_event": "The event stream ended without saying how the run ended.",
    "terminal_event_missing": "The status says that the run ended, but its events never did.",
    "not_a_stream": "The events address answered with something that is no event stream.",
    "events_not_found": "Hermes no longer has the events of this run.",
    "frame_too_large": "An event was larger than 1 MiB; the reading stopped there.",
    "too_many_events": "The stream held far more events than the portal keeps; the reading stopped there.",
    "refused": "Hermes did not give the events.",
    "not_stored": "Events could not be stored.",
    "portal_fault": "The portal failed while reading the events.",
}
LOST: Final = (
    "Hermes does not know this run any more: the id is unknown, it ended more than an hour ago, or Hermes was "
    "restarted. This does not prove that the run, or any of its commands, never ran."
)


class FenceLost(Exception):
    """Somebody else owns the run by now."""


@dataclass(slots=True, eq=False)
class Owned:
    """A run as its owner holds it. `lag`, `status` and `terminal` are the writer thread's own memory."""

    run_id: UUID
    fence: int
    tenant: Tenant
    endpoint: UUID
    credential_revision: int
    target: Target
    provider_run_id: str
    requester: str
    action_id: UUID
    next_ordinal: int
    lag: float | None
    status: str
    subscribe: bool
    features: dict[str, Any] = field(default_factory=dict)
    opened: float = 0.0
    truncated: bool = False


# --- claiming --------------------------------------------------------------------------------------------------------


def claim(hub_id: UUID, following: Collection[UUID], refused: Mapping[UUID, int], room: int) -> list[Owned]:
    """Takes runs that nobody reads: never subscribed, or left behind by an owner whose lease is over.

    A run that this hub owns but does not follow is left behind as well. `refused` are endpoints that refused their
    token, with its revision; they are left alone (case 21 f). Returns the runs to subscribe to; those whose stream was
    open are marked broken here, with a gap, and are polled from now on (rule 8).
    """
    now = clock.now()
    taken: list[Owned] = []
    for run in _ownerless(now, hub_id, following, refused)[: min(room, CLAIMS_AT_ONCE)]:
        owned = _take(run, hub_id, now)
        if owned is not None and owned.subscribe:
            taken.append(owned)
    return taken


def _ownerless(
    now: datetime, hub_id: UUID, following: Collection[UUID], refused: Mapping[UUID, int]
) -> QuerySet[Run]:
    runs = (
        followable()
        .filter(_free(now, hub_id, following))
        .filter(Q(next_poll_at=None) | Q(next_poll_at__lte=now) | Q(stream=Stream.OPEN))
    )
    for endpoint, revision in refused.items():
        runs = runs.exclude(endpoint=endpoint, endpoint__credential_revision=revision)
    return runs.select_related("endpoint__tenant", "tenant", "requester").order_by("started_at", "pk")


def followable() -> QuerySet[Run]:
    """Runs that have a receipt and have not ended."""
    return Run.objects.filter(status__in=Run.LIVE).exclude(provider_run_id="")


def _free(now: datetime, hub_id: UUID, following: Collection[UUID]) -> Q:
    own_orphan = Q(hub=hub_id, stream__in=(Stream.OPEN, Stream.NONE)) & ~Q(pk__in=list(following))
    return Q(hub=None) | Q(hub__lease_until__lte=now) | own_orphan


def _take(run: Run, hub_id: UUID, now: datetime) -> Owned | None:
    """One conditional UPDATE decides who owns a run. None when somebody was faster."""
    try:
        owned = _owned(run)
    except sealing.CannotOpen:
        Run.objects.filter(pk=run.pk, fence=run.fence).update(
            next_poll_at=now + timedelta(seconds=UNREADABLE_SECONDS)
        )
        return None
    # Columns of the row itself and nothing else: a condition on another table becomes a subquery, which PostgreSQL does
    # not look at again after it has waited for the row, so that two hubs could both win.
    mine = Run.objects.filter(pk=run.pk, fence=run.fence, stream=run.stream, hub=run.hub_id)
    owned.fence += 1
    changes = {"hub": hub_id, "fence": owned.fence, "version": F("version") + 1}
    if run.stream == Stream.NONE:
        # marked before connecting: should this process die meanwhile, nobody may subscribe a second time
        won = mine.update(stream=Stream.OPEN, next_poll_at=None, **changes)
        owned.subscribe = True
    elif run.stream == Stream.OPEN:
        with evidence.chain(run.tenant) as chain:
            won = mine.update(**changes)
            if won:
                _gap(chain, _locked(owned), "consumer_lost")
    else:
        won = mine.update(next_poll_at=now, **changes)
    return owned if won else None


def _owned(run: Run) -> Owned:
    return Owned(
        run_id=run.pk,
        fence=run.fence,
        tenant=run.tenant,
        endpoint=run.endpoint_id,
        credential_revision=run.endpoint.credential_revision,
        target=run.endpoint.target(),
        provider_run_id=run.provider_run_id,
        requester=run.requester.get_username(),
        action_id=run.action_id,
        next_ordinal=run.next_ordinal,
        lag=run.lag,
        status=run.status,
        subscribe=False,
        features=dict(run.features),
        truncated=run.truncated,
    )


def give_back(owned: Owned, delay: float) -> None:
    """The subscription was provably not made: anybody may try again after `delay` seconds."""
    Run.objects.filter(pk=owned.run_id, fence=owned.fence, stream=Stream.OPEN).update(
        stream=Stream.NONE,
        hub=None,
        next_poll_at=clock.now() + timedelta(seconds=delay),
        version=F("version") + 1,
    )


def release(hub_id: UUID) -> None:
    """Warm shutdown: what is left of the hub's runs is free at once, and the hub is gone."""
    Run.objects.filter(hub=hub_id).update(hub=None)
    Hub.objects.filter(pk=hub_id).delete()


def _locked(owned: Owned) -> Run:
    """The run, locked, if it is still ours. Raises FenceLost."""
    run = (
        Run.objects.select_for_update(of=("self",))
        .select_related("endpoint__tenant", "tenant", "requester", "action")
        .filter(pk=owned.run_id, fence=owned.fence)
        .first()
    )
    if run is None:
        raise FenceLost
    return run


# --- events ----------------------------------------------------------------------------------------------------------


def write_rows(rows: Sequence[tuple[Owned, Row]]) -> list[Owned]:
    """One batch of plain rows of any number of runs. Returns the owners whose fence is lost; their rows are dropped."""
    owners = {owned.run_id: owned for owned, _ in rows}
    with transaction.atomic():
        fences = dict(
            Run.objects.select_for_update()
            .filter(pk__in=list(owners))
            .order_by("pk")
            .values_list("pk", "fence")
        )
        held = {pk: owned for pk, owned in owners.items() if fences.get(pk) == owned.fence}
        offset = _Clock.read()
        events = [_event(owned, row, offset) for owned, row in rows if owned.run_id in held]
        RunEvent.objects.bulk_create(events, ignore_conflicts=True)
        if events:
            _advance(held, events)
    return [owned for pk, owned in owners.items() if pk not in held]


@dataclass(frozen=True, slots=True)
class _Clock:
    """Two clocks read at one moment: an instant off the socket becomes one by the database's clock."""

    now: datetime
    monotonic: float

    @classmethod
    def read(cls) -> "_Clock":
        return cls(clock.now(), time.monotonic())

    def at(self, monotonic: float) -> datetime:
        return self.now - timedelta(seconds=self.monotonic - monotonic)


def _event(owned: Owned, row: Row, times: _Clock) -> RunEvent:
    received = times.at(row.first_read)
    if row.provider_at is not None:
        lag = (received - row.provider_at).total_seconds()
        owned.lag = lag if owned.lag is None else min(owned.lag, lag)
    return RunEvent(
        run_id=owned.run_id,
        tenant_id=owned.tenant.pk,
        ordinal=row.ordinal,
        fence=owned.fence,
        kind=row.kind,
        received_at=received,
        last_received_at=times.at(row.last_read),
        provider_at=row.provider_at,
        seq=row.seq,
        count=row.count,
        text=row.text,
        data=row.data,
        raw_digest=row.raw_digest,
        flags=row.flags,
    )


def _advance(held: Mapping[UUID, Owned], events: Sequence[RunEvent]) -> None:
    """The runs' counters, in one statement for all of them."""
    reached: dict[UUID, int] = {}
    for event in events:
        reached[event.run_id] = max(reached.get(event.run_id, 0), event.ordinal + 1)
    Run.objects.filter(pk__in=list(reached)).update(
        version=F("version") + 1,
        next_ordinal=Case(*(When(pk=pk, then=Value(ordinal)) for pk, ordinal in reached.items())),
    )
    begun = [pk for pk in reached if held[pk].status == Status.QUEUED]
    if begun:
        Run.objects.filter(pk__in=begun, status=Status.QUEUED).update(
            status=Status.RUNNING, status_from="event"
        )
        for pk in begun:
            held[pk].status = Status.RUNNING


def note_reading(owned: Owned, features: Collection[str], truncated: bool) -> None:
    """What this reading showed so far: features of the provider, text over the cap."""
    owned.features |= dict.fromkeys(features, True)
    owned.truncated = owned.truncated or truncated
    Run.objects.filter(pk=owned.run_id, fence=owned.fence).update(
        features=owned.features, truncated=owned.truncated, version=F("version") + 1
    )


def control(owned: Owned, item: Control) -> bool:
    """An event that moves the ledger or the run, with its evidence, in a transaction of its own.

    Returns whether a later event may still say something about a prompt. Raises FenceLost.
    """
    with evidence.chain(owned.tenant) as chain:
        run = _locked(owned)
        known = run.events.filter(ordinal=item.row.ordinal).exists()
        if not known:
            times = _Clock.read()
            event = _event(owned, item.row, times)
            event.save(force_insert=True)
            run.next_ordinal, run.version, run.lag = event.ordinal + 1, run.version + 1, owned.lag
            run.save(update_fields=["next_ordinal", "version", "lag"])
            _apply(chain, run, event, item, owned)
        return prompts.unsettled(run)


def _apply(chain: Chain, run: Run, event: RunEvent, item: Control, owned: Owned) -> None:
    kind = item.event.kind
    if kind in TERMINAL:
        _end(chain, run, TERMINAL[kind], "event", event.received_at, item.event.members)
    elif kind == RESPONDED:
        members = item.event.members
        resolved = members.get("resolved")
        prompts.responded(
            chain,
            run,
            event,
            choice=_shown(members.get("choice"), run, 16),
            resolved=max(0, min(resolved, 1000))
            if isinstance(resolved, int) and not isinstance(resolved, bool)
            else 1,
            request_id=members.get("request_id") if isinstance(members.get("request_id"), str) else None,
        )
        _on_with_it(run)
    elif kind == TOOL_COMPLETED:
        failed = item.event.members.get("error") is True
        prompts.tool_completed(chain, run, event, none_running=item.none_running, failed=failed)
        _on_with_it(run)
    else:
        _open(chain, run, event, item, owned)


def _open(chain: Chain, run: Run, event: RunEvent, item: Control, owned: Owned) -> None:
    others = Run.objects.filter(endpoint=run.endpoint_id, lag__isnull=False).exclude(pk=run.pk)
    lags = others.order_by("-created_at").values_list("lag", flat=True)[:RECENT_RUNS]
    wait_from = prompts.wait_start(
        received=event.received_at,
        provider_at=event.provider_at,
        lag=owned.lag,
        elsewhere=min((lag for lag in lags if lag is not None), default=None),
        started_at=run.started_at,
        early=item.row.first_read - owned.opened < EARLY_SECONDS,
    )
    identity = prompts.identity_of(run, fence=owned.fence, frame=item.frame, raw_sha256=item.event.raw_sha256)
    run.moves_to(Status.WAITING, ~Q(status=Status.STOPPING), status_from="event")
    prompts.open_prompt(
        chain, run, event, prompts.Received(item.request, item.malformed, item.raw, identity, wait_from)
    )


def _on_with_it(run: Run) -> None:
    """A run that waits for nothing any more is running; a stop that was accepted stays what it is."""
    if not run.prompts.filter(status__in=(Prompt.Status.OPEN, Prompt.Status.IN_DOUBT)).exists():
        run.moves_to(Status.RUNNING, Q(status=Status.WAITING), status_from="event")


def read_through(hub_id: UUID, run_ids: Collection[UUID], at: float) -> None:
    """Every frame that had arrived for these runs at the monotonic instant `at` is durable."""
    times = _Clock.read()
    Run.objects.filter(pk__in=list(run_ids), hub=hub_id, stream=Stream.OPEN).update(
        read_through_at=times.at(at)
    )


# --- gaps and ends ---------------------------------------------------------------------------------------------------


def gap(
    owned: Owned,
    cause: str,
    *,
    heard: float | None = None,
    rows: Sequence[Row] = (),
    detail: str = "",
    keep: bool = True,
) -> None:
    """The reading broke off: recorded once, then the run's status is polled. Raises FenceLost.

    `heard` is the monotonic instant of the last bytes, `rows` are the last ones of the reading. `keep=False` also
    gives the run up, for another hub to poll.
    """
    with evidence.chain(owned.tenant) as chain:
        run = _locked(owned)
        if run.stream != Stream.OPEN:
            return
        times = _Clock.read()
        events = [_event(owned, row, times) for row in rows]
        RunEvent.objects.bulk_create(events, ignore_conflicts=True)
        if events:
            run.next_ordinal = max(run.next_ordinal, events[-1].ordinal + 1)
        since = times.at(heard) if heard is not None else None
        _gap(chain, run, cause, heard=since, detail=detail, keep=keep)


def _gap(
    chain: Chain, run: Run, cause: str, *, heard: datetime | None = None, detail: str = "", keep: bool = True
) -> None:
    since = _known_until(run, heard)
    data = {
        "cause": cause,
        "sentence": CAUSES[cause],
        "from": evidence.timestamp(since) if since else None,
        "to": evidence.timestamp(chain.now),
        "detail": detail,
    }
    RunEvent.objects.create(
        run=run,
        tenant=run.tenant,
        ordinal=run.next_ordinal,
        fence=run.fence,
        kind=RunEvent.GAP,
        received_at=since or chain.now,
        last_received_at=chain.now,
        text=CAUSES[cause],
        data=data,
        raw_digest=canonical.sha256(b""),
    )
    chain.append(
        Kind.RUN_GAP,
        actor=WORKER,
        run=run.pk,
        data={
            **data,
            "ordinal": run.next_ordinal,
            "fence": run.fence,
            "open_prompts": [
                str(pk)
                for pk in run.prompts.filter(status__in=Prompt.UNSETTLED).values_list("pk", flat=True)[:50]
            ],
        },
    )
    run.stream = Stream.BROKEN
    run.gaps += 1
    run.next_ordinal += 1
    run.version += 1
    run.next_poll_at = chain.now
    if not keep:
        run.hub = None
    if cause == "events_not_found":
        run.out_of_reach_since = chain.now
    run.save(
        update_fields=[
            "stream",
            "gaps",
            "next_ordinal",
            "version",
            "next_poll_at",
            "hub",
            "out_of_reach_since",
        ]
    )


def _known_until(run: Run, heard: datetime | None) -> datetime | None:
    """The last instant up to which the events are known."""
    last = run.events.order_by("-ordinal").values_list("last_received_at", flat=True).first()
    known = [instant for instant in (last, run.read_through_at, heard) if instant is not None]
    return max(known) if known else run.started_at


def _end(
    chain: Chain, run: Run, status: str, source: str, ended_at: datetime, members: Mapping[str, Any]
) -> None:
    """A terminal event or status, and nothing else, ends a run (rule 8)."""
    stream = Stream.ENDED if run.stream == Stream.OPEN else run.stream
    before = run.status
    if not run.moves_to(
        status,
        status_from=source,
        ended_at=ended_at,
        stream=stream,
        hub=None,
        next_poll_at=None,
        version=F("version") + 1,
        **_results(run, members),
    ):
        return
    prompts.run_over(chain, run, f"The run ended: {run.get_status_display().lower()}.")
    chain.append(
        Kind.RUN_ENDED,
        actor=Actor.provider(run.endpoint),
        run=run.pk,
        data={
            "status": status,
            "before": before,
            "source": source,
            "ended_at": evidence.timestamp(ended_at),
            "events": run.next_ordinal,
            "gaps": run.gaps,
            "truncated": run.truncated,
            "stop_asked": run.stop_asked_at is not None,
            "provenance": evidence.provenance(run.endpoint),
        },
    )


def _results(run: Run, members: Mapping[str, Any]) -> dict[str, Any]:
    """Output, usage and error as far as given, redacted."""
    found: dict[str, Any] = {}
    for name in ("output", "error"):
        if isinstance(members.get(name), str):
            found[name] = _shown(members[name], run)
    if isinstance(members.get("usage"), dict):
        found["usage"] = redaction.redact_value(members["usage"], own=[run.endpoint.open_token()])
    return found


def _shown(value: object, run: Run, limit: int = 0) -> str:
    """Provider text as it may be stored; what is no text becomes some."""
    text = value if isinstance(value, str) else "" if value is None else repr(value)
    if not isinstance(value, str):
        limit = limit or TEXT_LIMIT
    shown = redaction.redact(text, own=[run.endpoint.open_token()])
    return redaction.excerpt(shown, limit) if limit else shown


# --- polling ---------------------------------------------------------------------------------------------------------


def due(hub_id: UUID, asking: Collection[UUID], refused: Mapping[UUID, int]) -> list[Owned]:
    """The hub's runs whose events are lost and whose status is to be asked for now, longest waiting first."""
    runs = followable().filter(hub=hub_id, stream=Stream.BROKEN, next_poll_at__lte=clock.now())
    runs = runs.exclude(pk__in=list(asking))
    for endpoint, revision in refused.items():
        runs = runs.exclude(endpoint=endpoint, endpoint__credential_revision=revision)
    found: list[Owned] = []
    for run in runs.select_related("endpoint__tenant", "tenant", "requester").order_by("next_poll_at")[
        :CLAIMS_AT_ONCE
    ]:
        try:
            found.append(_owned(run))
        except sealing.CannotOpen:
            poll_later(run.pk, run.fence, UNREADABLE_SECONDS)
    return found


def poll_later(run_id: UUID, fence: int, delay: float) -> None:
    """The next look at the status, `delay` seconds from now."""
    now = clock.now()
    Run.objects.filter(pk=run_id, fence=fence, stream=Stream.BROKEN).update(
        next_poll_at=now + timedelta(seconds=delay)
    )


def status_seen(owned: Owned, seen: Mapping[str, Any], *, delay: float | None) -> str:
    """Records what a status said; returns the run's state afterwards. Raises FenceLost.

    `delay` is given where the status is the only source left: then its state counts, and is asked for again after that
    many seconds. Beside an open stream it only adds what events do not say, and that a stop was accepted. A state
    never opens or closes a prompt, unless it is terminal: while a prompt waits, and after its wait, states lie
    (contract 0.19 (e) 3).
    """
    state = seen.get("status")
    decides = delay is not None
    if decides and state in Run.TERMINAL:
        with evidence.chain(owned.tenant) as chain:
            run = _locked(owned)
            _describe(run, seen, chain.now)
            _end(chain, run, str(state), "poll", chain.now, seen)
        return run.status
    with transaction.atomic():
        run = _locked(owned)
        now = clock.now()
        _describe(run, seen, now)
        if state == Status.STOPPING and run.stop_asked_at is None:
            run.stop_asked_at = now  # somebody else asked: no answer may be sent any more
        if delay is not None and run.stream == Stream.BROKEN:
            run.next_poll_at = now + timedelta(seconds=delay)
        run.version += 1
        run.save(update_fields=["stop_asked_at", "next_poll_at", "version"])
        if decides and state in Run.LIVE and state != run.status:
            run.moves_to(str(state), status_from="poll")
        elif state == Status.STOPPING:
            run.moves_to(Status.STOPPING, status_from="poll")
    return run.status


def _describe(run: Run, seen: Mapping[str, Any], now: datetime) -> None:
    """What only the status says."""
    run.polled_at = now
    run.model = _shown(seen.get("model"), run, TEXT_LIMIT) or run.model
    run.session_id = _shown(seen.get("session_id"), run, TEXT_LIMIT) or run.session_id
    run.last_event = _shown(seen.get("last_event"), run, 100) or run.last_event
    run.provider_created_at = _provider_time(seen.get("created_at")) or run.provider_created_at
    run.provider_updated_at = _provider_time(seen.get("updated_at")) or run.provider_updated_at
    run.save(
        update_fields=[
            "polled_at",
            "model",
            "session_id",
            "last_event",
            "provider_created_at",
            "provider_updated_at",
        ]
    )


def _provider_time(value: object) -> datetime | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 253_402_300_799:
        return None
    return datetime.fromtimestamp(value, UTC)


def described(owned: Owned, seen: Mapping[str, Any]) -> None:
    """The same after the end, when the run is no longer anybody's."""
    run = Run.objects.select_related("endpoint__tenant").get(pk=owned.run_id)
    if run.fence == owned.fence:
        _describe(run, seen, clock.now())
        Run.objects.filter(pk=run.pk).update(version=F("version") + 1)


def lost(owned: Owned) -> None:
    """The status is gone as well: nothing is known of how the run ended (case 22). Raises FenceLost."""
    with evidence.chain(owned.tenant) as chain:
        run = _locked(owned)
        if not run.moves_to(
            Status.LOST,
            status_from="poll",
            polled_at=chain.now,
            hub=None,
            next_poll_at=None,
            version=F("version") + 1,
        ):
            return
        prompts.run_over(chain, run, "Hermes does not know the run any more.")
        chain.append(
            Kind.RUN_LOST,
            actor=WORKER,
            run=run.pk,
            data={
                "sentence": LOST,
                "events": run.next_ordinal,
                "gaps": run.gaps,
                "provenance": evidence.provenance(run.endpoint),
            },
        )


def mark(endpoint: UUID, health: str, detail: str) -> None:
    """What was seen of an endpoint, for people; nothing is written where it was known."""
    EndpointStatus.objects.filter(pk=endpoint).exclude(health=health, detail=detail[:500]).update(
        health=health, detail=detail[:500], checked_at=clock.now()
    )
