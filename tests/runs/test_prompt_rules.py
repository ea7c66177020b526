"""Rule 6 from end to end: a real hub reads a provider on a socket, people decide, the ledger sends or does not.

Each test ends with what reached the provider: which command was released, with which choice, by how many requests.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from approvals import execution, services, setup
from approvals.errors import Denied, Invalid
from approvals.evidence import OPERATOR
from approvals.models import (
    Action,
    Approval,
    Decision,
    EvidenceEntry,
    EvidencePayload,
    Execution,
    Kind,
    Role,
)
from hermes_portal import clock
from hermes_portal.transitions import Conflict
from runs.models import Hub as HubRow
from runs.models import Prompt, Run
from tests import fake_hermes
from tests.factories import Cast
from tests.fake_hermes import FakeHermes, FakeRun
from tests.runs.streams import cast_at, evidence_of, fresh, hub, prompt_of, received, until

pytestmark = pytest.mark.django_db(transaction=True)
Sent = Execution.Status
APPROVAL = r"/v1/runs/run_[0-9a-f]{32}/approval"


@pytest.fixture
def hermes() -> Iterator[FakeHermes]:
    with FakeHermes() as fake:
        yield fake


@pytest.fixture
def desk(transactional_db: None, hermes: FakeHermes) -> Cast:
    return cast_at(hermes)


@dataclass
class Followed:
    """One run that a hub reads, and what people and workers do about it."""

    desk: Cast
    hermes: FakeHermes
    fake: FakeRun
    run: Run

    def asks(self, command: str, **members: Any) -> Prompt:
        """Hermes stops at a command; its prompt, once the stream is proven to be read up to it."""
        number = self.run.prompts.count()
        self.fake.ask(command, **members)
        prompt = prompt_of(self.run, number)
        self.alive()
        return prompt

    def alive(self) -> None:
        """Waits for a proof of reading that is younger than this call."""
        since = clock.now()
        until(lambda: (fresh(self.run).read_through_at or since) > since)

    def decide(self, prompt: Prompt, choice: str, by: Any = None, **more: Any) -> Decision:
        approval = card(prompt)
        given = {"reason": "Looks right.", "seen": services.seen_digest(approval)} | more
        return services.decide(approval=approval, user=by or self.desk.reviewer, choice=choice, **given)

    def answer(self, prompt: Prompt, choice: str = "once") -> Action:
        """Decides and lets a worker try it at once."""
        action = decided(self.decide(prompt, choice))
        self.alive()
        execution.execute(action.pk)
        return action

    @property
    def sent(self) -> list[dict[str, Any]]:
        return [seen.json() for seen in self.hermes.mutations(APPROVAL)]


@pytest.fixture
def followed(desk: Cast, hermes: FakeHermes) -> Iterator[Followed]:
    fake = hermes.run()
    run = received(desk, fake)
    with hub():
        fake.wait_for_subscriber()
        yield Followed(desk, hermes, fake, run)


def card(prompt: Prompt) -> Approval:
    """The newest approval about a prompt."""
    return Approval.objects.filter(subject=prompt.subject).latest("created_at")


def again(prompt: Prompt) -> Prompt:
    return Prompt.objects.get(pk=prompt.pk)


def decided(decision: Decision) -> Action:
    """The action that carries a decision to Hermes: the approval's own, or for deny the linked one."""
    approval = Approval.objects.get(pk=decision.approval_id)
    if approval.status == Approval.Status.DENIED:
        return Action.objects.get(linked_to=approval)
    assert approval.action is not None
    return approval.action


def outcome(action: Action) -> tuple[str, str]:
    row = Execution.objects.get(pk=action.pk)
    return row.status, row.code


# --- the straight path


def test_an_answer_reaches_the_command_that_was_reviewed_and_the_run_goes_on(followed: Followed) -> None:
    prompt = followed.asks("rm -rf /srv/cache")
    action = followed.answer(prompt)
    assert outcome(action) == (Sent.APPLIED, "accepted")
    assert followed.fake.released == [("rm -rf /srv/cache", "once")]
    assert followed.sent == [{"choice": "once", "resolve_all": False}]
    until(lambda: again(prompt).responded_at)
    assert again(prompt).status == Prompt.Status.ANSWERED
    assert card(prompt).status == Approval.Status.CONSUMED
    assert fresh(followed.run).status == Run.Status.RUNNING


def test_the_evidence_of_the_intent_holds_the_proof_of_the_head(followed: Followed) -> None:
    action = followed.answer(followed.asks("rm -rf /srv/cache"))
    entry = EvidenceEntry.objects.get(kind=Kind.EXECUTION_INTENT, action_id=action.pk)
    body = bytes(EvidencePayload.objects.get(pk=entry.pk).body).decode()
    for name in ('"read_through_age_ms":', '"wait_until":', '"gaps":0', '"by_request_id":false'):
        assert name in body


# --- order


def test_the_second_request_can_not_be_answered_first_not_even_with_deny(followed: Followed) -> None:
    first, second = followed.asks("rm -rf /srv/cache"), followed.asks("ls /srv")
    for choice in ("once", "deny"):
        with pytest.raises(Conflict, match="earlier request of this run must be answered first"):
            followed.decide(second, choice)
    assert (followed.sent, Decision.objects.count()) == ([], 0)
    followed.answer(first)
    until(lambda: again(first).responded_at)
    followed.answer(second)
    assert followed.fake.released == [("rm -rf /srv/cache", "once"), ("ls /srv", "once")]


def test_a_later_answer_that_was_approved_before_is_not_sent_while_an_earlier_request_waits(
    followed: Followed,
) -> None:
    """The decide page checks the order; the ledger checks it again, with nothing but the database between them."""
    first, second = followed.asks("rm -rf /srv/cache"), followed.asks("ls /srv")
    Prompt.objects.filter(pk=first.pk).update(
        let_go=True
    )  # as if the second had been the head when it was decided
    action = decided(followed.decide(second, "once"))
    Prompt.objects.filter(pk=first.pk).update(let_go=False)
    followed.alive()
    execution.execute(action.pk)
    assert outcome(action) == (Sent.REFUSED, "earlier_request")
    assert (followed.sent, followed.fake.released) == ([], [])


def test_two_equal_requests_in_one_second_are_two_cards_and_two_answers(followed: Followed) -> None:
    first, second = followed.asks("make deploy", timestamp=1.0), followed.asks("make deploy", timestamp=1.0)
    assert card(first).pk != card(second).pk
    followed.answer(first)
    assert again(second).status == Prompt.Status.OPEN
    assert len(followed.fake.pending) == 1


# --- the choice (case 4)

HOSTILE_CHOICES = (
    "session",
    "always",
    "ALWAYS",
    " once ",
    "Once",
    "approve",
    "approved",
    "allow",
    "yes",
    "true",
    "",
    '["once"]',
    "once\n",
    "once\x00",
    "ｏｎｃｅ",
    "o" * 10_000,
)


@pytest.fixture
def narrow(desk: Cast, hermes: FakeHermes) -> Iterator[tuple[Followed, Prompt]]:
    """A request that offers `once` and `deny` alone."""
    fake = hermes.run()
    run = received(desk, fake)
    with hub():
        fake.wait_for_subscriber()
        scene = Followed(desk, hermes, fake, run)
        yield scene, scene.asks("rm -rf /srv/cache", choices=["once", "deny"], allow_permanent=False)


def test_case_4_what_was_not_offered_is_refused_by_the_service_and_by_the_form(
    narrow: tuple[Followed, Prompt],
) -> None:
    scene, prompt = narrow
    client = Client()
    client.force_login(scene.desk.reviewer)
    before = EvidenceEntry.objects.count()
    seen = services.seen_digest(card(prompt))
    for choice in HOSTILE_CHOICES:
        with pytest.raises(Invalid) as refused:
            scene.decide(prompt, choice)
        assert list(refused.value.errors) == ["choice"]
        answer = posted(client, prompt, seen, choice=choice, confirm=choice)
        assert answer.status_code == 422, choice
    for twice in (["once", "always"], ["once", "once"], ["deny", "once"]):
        assert posted(client, prompt, seen, choice=twice).status_code == 422
    assert posted(client, prompt, seen).status_code == 422
    assert posted(client, prompt, seen, verdict="approve").status_code == 422
    assert posted(client, prompt, seen, verdict=["deny", "approve"], choice="once").status_code == 422
    assert EvidenceEntry.objects.count() == before
    assert not Decision.objects.exists()
    assert card(prompt).status == Approval.Status.PENDING
    assert scene.hermes.mutations() == []
    assert posted(client, prompt, seen, choice="once").status_code == 302


def posted(client: Client, prompt: Prompt, seen: str, **fields: Any) -> Any:
    address = reverse("decide", args=[card(prompt).pk])
    return client.post(address, {"reason": "Looks right.", "seen": seen} | fields)


def test_the_choice_that_was_decided_is_stored_and_sent_letter_for_letter(followed: Followed) -> None:
    action = followed.answer(followed.asks("rm -rf /srv/cache"), "session")
    assert execution.exact_input(action)["choice"] == "session"
    assert followed.hermes.mutations(APPROVAL)[0].body == execution.exact_wire(action)
    assert followed.sent == [{"choice": "session", "resolve_all": False}]


# --- what blocks an answer


def test_a_gap_blocks_every_answer_on_the_page_and_in_the_ledger(followed: Followed) -> None:
    prompt = followed.asks("rm -rf /srv/cache")
    action = decided(followed.decide(prompt, "once"))
    followed.fake.cut()
    until(lambda: fresh(followed.run).gaps)
    execution.execute(action.pk)
    assert outcome(action) == (Sent.REFUSED, "gap")
    assert followed.sent == []
    assert card(prompt).status == Approval.Status.PENDING, "the refusal leaves a card that says why"
    with pytest.raises(Conflict, match="broke off"):
        followed.decide(prompt, "deny")


def test_a_stream_that_is_no_longer_proven_alive_blocks_the_answer(desk: Cast, hermes: FakeHermes) -> None:
    fake = hermes.run()
    run = received(desk, fake)
    with hub():
        fake.wait_for_subscriber()
        scene = Followed(desk, hermes, fake, run)
        action = decided(scene.decide(scene.asks("rm -rf /srv/cache"), "once"))
    with clock.moved(timedelta(seconds=2)):  # the hub has ended; the card was decided in time
        execution.execute(action.pk)
    assert outcome(action)[0] == Sent.REFUSED
    assert scene.sent == []


def test_when_the_wait_of_hermes_is_over_nothing_is_sent_whatever_was_decided(followed: Followed) -> None:
    prompt = followed.asks("rm -rf /srv/cache")
    action = decided(followed.decide(prompt, "once"))
    with clock.moved(timedelta(seconds=59)):
        execution.execute(action.pk)
    assert followed.sent == []
    assert not Execution.objects.filter(status__in=(Sent.SENT, Sent.APPLIED)).exists()
    with clock.moved(timedelta(seconds=61)):
        services.expire()
        assert card(prompt).status == Approval.Status.EXPIRED


def test_a_late_click_after_the_wait_is_409_and_says_so(desk: Cast, hermes: FakeHermes) -> None:
    setup.change_endpoint(endpoint=desk.endpoint, by=OPERATOR, approval_wait=3)
    fake = hermes.run()
    run = received(desk, fake)
    with hub():
        fake.wait_for_subscriber()
        fake.ask("rm -rf /srv/cache")
        prompt = prompt_of(run)
        until(lambda: prompt.wait_until <= clock.now() + timedelta(seconds=1.9))
        with pytest.raises(Conflict, match="expired at"):
            services.decide(
                approval=card(prompt),
                user=desk.reviewer,
                choice="once",
                reason="Late.",
                seen=services.seen_digest(card(prompt)),
            )
    assert hermes.mutations() == []


def test_a_stop_that_was_asked_blocks_every_answer(followed: Followed) -> None:
    prompt = followed.asks("rm -rf /srv/cache")
    answer = decided(followed.decide(prompt, "once"))
    stop = stopped(followed)
    execution.execute(stop.pk)
    execution.execute(answer.pk)
    assert outcome(stop) == (Sent.APPLIED, "stop_requested")
    assert outcome(answer) == (Sent.REFUSED, "stop_asked")
    assert followed.fake.released == []


def stopped(followed: Followed) -> Action:
    """An approved stop of the run."""
    action = services.request(
        user=followed.desk.requester,
        endpoint=followed.desk.endpoint,
        operation="run_stop",
        raw={"run_id": followed.run.provider_run_id},
        reason="Wrong year.",
        key="stop",
    ).action
    services.decide(
        approval=action.approval,
        user=followed.desk.second,
        verdict="approve",
        reason="Stop it.",
        seen=services.seen_digest(action.approval),
    )
    return action


def test_case_2_a_grant_of_a_request_that_went_away_is_not_sent_to_its_successor(followed: Followed) -> None:
    followed.fake.emit({"event": "tool.started", "tool": "terminal"})
    old = followed.asks("systemctl restart web")
    action = decided(followed.decide(old, "once"))
    followed.fake.expire_approval()
    new = followed.asks("dropdb billing")
    execution.execute(action.pk)
    assert followed.sent == []
    assert again(old).status == Prompt.Status.LAPSED
    assert card(old).status == Approval.Status.STALE
    assert card(new).status == Approval.Status.PENDING
    assert followed.fake.released == []


# --- outcomes that are not known


def test_a_lost_answer_is_in_doubt_blocks_later_ones_and_is_settled_by_the_stream(followed: Followed) -> None:
    first, second = followed.asks("rm -rf /srv/cache"), followed.asks("ls /srv")
    followed.hermes.script("POST", APPROVAL, fake_hermes.close())
    lost = followed.answer(first)
    assert outcome(lost) == (Sent.UNKNOWN, "reply_lost")
    assert again(first).status == Prompt.Status.IN_DOUBT
    with pytest.raises(Conflict, match="not known whether an earlier answer"):
        followed.decide(second, "once")
    followed.fake.answer("once", everything=False, request_id=None)  # it had arrived after all
    until(lambda: again(first).status == Prompt.Status.ANSWERED)
    execution.settle_overdue()
    assert outcome(lost) == (Sent.APPLIED, "seen_responded")
    assert Execution.objects.get(pk=lost.pk).settled_by == "reading"
    execution.execute(lost.pk)
    followed.answer(second)
    assert len(followed.sent) == 2
    assert followed.fake.released == [("rm -rf /srv/cache", "once"), ("ls /srv", "once")]


def test_a_reply_that_was_lost_after_the_effect_is_applied_by_what_the_stream_shows(
    followed: Followed,
) -> None:
    prompt = followed.asks("rm -rf /srv/cache")
    followed.hermes.script("POST", APPROVAL, fake_hermes.reset().with_effect())
    action = followed.answer(prompt)
    until(lambda: again(prompt).responded_at)
    until(lambda: again(prompt).status == Prompt.Status.ANSWERED)
    execution.settle_overdue()
    assert outcome(action)[0] == Sent.APPLIED
    assert followed.fake.released == [("rm -rf /srv/cache", "once")]
    assert len(followed.sent) == 1


def test_a_lost_answer_whose_request_went_away_unanswered_is_not_applied(followed: Followed) -> None:
    followed.fake.emit({"event": "tool.started", "tool": "terminal"})
    prompt = followed.asks("rm -rf /srv/cache")
    followed.hermes.script("POST", APPROVAL, fake_hermes.close())
    action = followed.answer(prompt)
    followed.fake.expire_approval()
    until(lambda: again(prompt).status == Prompt.Status.VOID)
    execution.settle_overdue()
    assert outcome(action)[0] == Sent.NOT_APPLIED
    assert len(followed.sent) == 1


def test_a_lost_answer_and_another_one_seen_is_not_called_ours(followed: Followed) -> None:
    prompt = followed.asks("rm -rf /srv/cache")
    followed.hermes.script("POST", APPROVAL, fake_hermes.close())
    action = followed.answer(prompt)
    followed.fake.answer("deny", everything=False, request_id=None)  # somebody at the server
    until(lambda: again(prompt).responded_at)
    execution.settle_overdue()
    assert outcome(action)[0] == Sent.NOT_APPLIED
    assert again(prompt).responded_choice == "deny"


@pytest.mark.parametrize("resolved", [0, 2, True, "1", None])
def test_an_answer_that_resolved_another_number_than_one_is_unknown_and_evidence_says_so(
    followed: Followed, resolved: object
) -> None:
    prompt = followed.asks("rm -rf /srv/cache")
    value = {"object": "hermes.run.approval_response", "choice": "once", "resolved": resolved}
    followed.hermes.script("POST", APPROVAL, fake_hermes.reply(200, value))
    action = followed.answer(prompt)
    assert outcome(action)[0] == Sent.UNKNOWN
    assert again(prompt).status == Prompt.Status.IN_DOUBT
    entry = EvidenceEntry.objects.get(kind=Kind.EXECUTION_UNKNOWN, action_id=action.pk)
    assert outcome(action)[1] in bytes(entry.payload.body).decode()
    assert len(followed.sent) == 1


# --- definite refusals


@pytest.mark.parametrize(
    ("status", "reason", "ends", "code"),
    [
        (409, "approval_not_pending", Prompt.Status.LAPSED, "approval_not_pending"),
        (409, "approval_not_active", Prompt.Status.VOID, "approval_not_active"),
        (404, "run_not_found", Prompt.Status.VOID, "run_not_found"),
    ],
)
def test_what_hermes_no_longer_waited_for_is_not_called_applied(
    followed: Followed, status: int, reason: str, ends: str, code: str
) -> None:
    prompt = followed.asks("rm -rf /srv/cache")
    followed.hermes.script("POST", APPROVAL, fake_hermes.provider_error(status, "No", reason))
    action = followed.answer(prompt)
    assert outcome(action) == (Sent.NOT_APPLIED, code)
    assert again(prompt).status == ends
    client = Client()
    client.force_login(followed.desk.reviewer)
    page = client.get(reverse("approval", args=[card(prompt).pk])).content.decode()
    row = Execution.objects.get(pk=action.pk)
    assert row.sentence in page
    assert "Accepted by Hermes" not in page
    assert "Nothing was released." in row.sentence


def test_a_connection_that_was_refused_opens_a_new_approval_of_the_same_request(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = followed.asks("rm -rf /srv/cache")
    old = card(prompt)
    with monkeypatch.context() as away:
        away.setattr("approvals.execution.Client.send", not_connected)
        action = followed.answer(prompt)
    assert outcome(action) == (Sent.NOT_APPLIED, "connect_failed")
    assert again(prompt).status == Prompt.Status.OPEN
    new = card(prompt)
    assert new.pk != old.pk
    assert (new.status, new.effective_at) == (Approval.Status.PENDING, old.effective_at)
    followed.answer(prompt)
    assert followed.fake.released == [("rm -rf /srv/cache", "once")]
    assert len(followed.sent) == 1


def not_connected(*args: object, **kwargs: object) -> None:
    """What the adapter raises when nothing listens (tested on a real socket in tests/portal/hermes)."""
    from hermes_portal.hermes.errors import ConnectFailed

    raise ConnectFailed("connection refused")


# --- deny


def test_deny_is_final_here_and_goes_out_once_through_a_linked_action(followed: Followed) -> None:
    prompt = followed.asks("rm -rf /srv/cache")
    decision = followed.decide(prompt, "deny")
    denied = card_of(decision)
    linked = decided(decision)
    followed.alive()
    execution.execute(linked.pk)
    execution.execute(linked.pk)
    execution.dispatch()
    assert denied.status == Approval.Status.DENIED
    assert outcome(linked) == (Sent.APPLIED, "accepted")
    assert followed.fake.released == [("rm -rf /srv/cache", "deny")]
    assert followed.sent == [{"choice": "deny", "resolve_all": False}]
    until(lambda: again(prompt).responded_at)
    assert again(prompt).status == Prompt.Status.ANSWERED
    with pytest.raises(Conflict, match="denied this"):
        services.decide(
            approval=denied,
            user=followed.desk.second,
            choice="once",
            reason="No, yes.",
            seen=services.seen_digest(denied),
        )


def card_of(decision: Decision) -> Approval:
    return Approval.objects.get(pk=decision.approval_id)


def test_a_verdict_of_deny_ignores_any_choice(followed: Followed) -> None:
    prompt = followed.asks("rm -rf /srv/cache")
    decision = followed.decide(prompt, "always", verdict="deny")
    assert (decision.verdict, decision.choice) == ("deny", "deny")
    linked = decided(decision)
    followed.alive()
    execution.execute(linked.pk)
    assert followed.fake.released == [("rm -rf /srv/cache", "deny")]


def test_whoever_started_the_run_never_answers_it(followed: Followed) -> None:
    desk = followed.desk
    setup.set_roles(user=desk.requester, tenant=desk.acme, roles=[Role.REQUESTER, Role.REVIEWER], by=OPERATOR)
    prompt = followed.asks("rm -rf /srv/cache")
    client = Client()
    client.force_login(desk.requester)
    for choice in ("once", "deny"):
        with pytest.raises(Denied, match="Somebody else"):
            followed.decide(prompt, choice, by=desk.requester)
        assert posted(client, prompt, services.seen_digest(card(prompt)), choice=choice).status_code == 403
    assert (followed.sent, Decision.objects.count()) == ([], 0)


def test_setting_aside_withdrawing_and_expiry_send_nothing(followed: Followed) -> None:
    prompt = followed.asks("rm -rf /srv/cache")
    client = Client()
    client.force_login(followed.desk.reviewer)
    client.post(reverse("aside", args=[card(prompt).pk]))
    with pytest.raises(Denied, match="ask for a stop"):
        services.withdraw(approval=card(prompt), user=followed.desk.requester)
    with clock.moved(timedelta(minutes=16)):
        services.expire()
        execution.dispatch()
    assert followed.hermes.mutations() == []
    assert not Action.objects.filter(operation="run_approval").exists()


# --- a provider whose requests have ids (0.22)


@pytest.fixture
def newer(transactional_db: None) -> Iterator[Followed]:
    with FakeHermes(generation="0.22") as hermes:
        desk = cast_at(hermes)
        fake = hermes.run()
        run = received(desk, fake)
        with hub():
            fake.wait_for_subscriber()
            yield Followed(desk, hermes, fake, run)


def test_with_ids_the_answer_names_its_request_and_may_be_out_of_order(newer: Followed) -> None:
    first, second = newer.asks("rm -rf /srv/cache"), newer.asks("ls /srv")
    newer.answer(second)
    assert newer.sent[0]["request_id"] == second.request_id
    assert newer.fake.released == [("ls /srv", "once")]
    assert again(first).status == Prompt.Status.OPEN


# --- a restart while a prompt waits (case 52)


def test_case_52_a_restart_keeps_the_card_refuses_the_answer_and_lets_the_run_be_stopped(
    desk: Cast, hermes: FakeHermes
) -> None:
    fake = hermes.run()
    run = received(desk, fake)
    with hub("before"):
        fake.wait_for_subscriber()
        scene = Followed(desk, hermes, fake, run)
        prompt = scene.asks("rm -rf /srv/cache")
        action = decided(scene.decide(prompt, "once"))
    assert not HubRow.objects.exists()
    with hub("after"):
        until(lambda: fresh(run).gaps)
        client = Client()
        client.force_login(desk.reviewer)
        execution.execute(action.pk)
        assert outcome(action) == (Sent.REFUSED, "gap")
        waiting = card(prompt)
        assert waiting.status == Approval.Status.PENDING
        page = client.get(reverse("approval", args=[waiting.pk])).content.decode()
        assert "broke off after this request" in page
        assert 'value="once"' not in page
        with pytest.raises(Conflict, match="broke off"):
            scene.decide(prompt, "once")
        stop = stopped(scene)
        execution.execute(stop.pk)
        assert outcome(stop) == (Sent.APPLIED, "stop_requested")
    assert fake.released == []
    assert scene.sent == []
    assert fake.subscriptions == 1
    assert len(evidence_of(run, Kind.RUN_GAP)) == 1
