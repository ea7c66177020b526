"""The three mutations of a run: start, answer a prompt, stop. Registered with approvals; only its ledger sends."""

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction

from approvals import operations
from approvals.evidence import WORKER, Chain
from approvals.execution import exact_input
from approvals.models import Action, Approval, Endpoint, Execution, Kind, User
from approvals.nudges import publish
from approvals.operations import Asked, Card, Outcome, Stale
from hermes_portal import canonical, clock, redaction
from hermes_portal.hermes import capabilities
from hermes_portal.hermes.client import Reply, WireRequest, run_path
from hermes_portal.hermes.errors import Conflict, HermesError, InvalidInput, NotFound
from runs import prompts
from runs.models import Prompt, Run, RunEvent
from runs.states import BUSY_CODES

Status = Execution.Status
TITLE = 200
TRAIL = 8
RELEASED_OTHER = "released_other"
RELEASED_OTHER_SENTENCE = (
    "Hermes took an answer after it had stopped waiting for this request: it may have released another command. "
    "Look at what the run did next."
)

CHOICES = {
    "once": ("Once", "this command, now"),
    "session": ("For this run", "this class of command until this run ends"),
    "always": ("Always", "every run and caller of that server for this class of command, kept on its disk"),
    "deny": ("Deny", "the command is refused, the run goes on"),
}


def register() -> None:
    for operation in (RunStart(), RunApproval(), RunStop()):
        operations.register(operation)


class _RunOperation:
    """What the three have in common."""

    name: str

    def validate(self, raw: dict[str, Any]) -> dict[str, Any]:
        return capabilities.validate_input(self.name, raw, max_bytes=settings.INPUT_LIMIT_BYTES)

    def asked(self, action: Action, chain: Chain) -> None:
        """Nothing belongs to the action but itself."""

    def facts(self, subject: str, choice: str) -> dict[str, Any]:
        return {}

    def policy_input(self, approval: Approval, choice: str) -> dict[str, Any]:
        assert approval.action is not None
        return exact_input(approval.action)

    def exact(self, approval: Approval) -> bytes:
        assert approval.action is not None
        return canonical.dumps(exact_input(approval.action))

    def decidable(self, approval: Approval, choice: str, now: datetime) -> None:
        """Nothing stands in the way."""

    def choice_input(self, approval: Approval, choice: str) -> Asked:
        raise LookupError(f"{self.name} has no choices")

    def confirm(self, action: Action, sent_at: datetime) -> dict[str, Any]:
        return {}

    def refused(self, error: HermesError) -> Outcome | None:
        return None

    def abandoned(self, approval: Approval, chain: Chain) -> None:
        """Nothing else hangs on it."""

    def reconcile(self, action: Action, execution: Execution) -> Outcome | None:
        return None


def _own(endpoint: Endpoint) -> list[str]:
    return [endpoint.open_token()]


def _line(text: str, endpoint: Endpoint, limit: int = TITLE) -> str:
    """One redacted line of a text."""
    return redaction.excerpt(redaction.redact(" ".join(text.split()), own=_own(endpoint)), limit)


def current_input(body: dict[str, Any]) -> str:
    """The text that the run works on: the input, or the content of its last item (spec runs: start a run)."""
    item = body["input"]
    if isinstance(item, list):
        item = item[-1]["content"] if isinstance(item[-1], dict) else item[-1]
    return item if isinstance(item, str) else canonical.dumps(item).decode()


class RunStart(_RunOperation):
    """POST /v1/runs. Needs no approval unless policy says so."""

    name = "run_start"

    def ask(self, *, endpoint: Endpoint, input: dict[str, Any], user: User) -> Asked:
        _refuse_too_soon(endpoint)
        return Asked(
            input=input,
            shown=redaction.redact_value(input, own=_own(endpoint)),
            title=_line(current_input(input["body"]), endpoint) or "Run without text",
            subject="",
            lane="",
            context=f"Start a run on {endpoint.endpoint_id}",
        )

    def asked(self, action: Action, chain: Chain) -> None:
        Run.objects.create(
            tenant=action.tenant,
            endpoint=action.endpoint,
            action=action,
            requester=action.requester,
            title=action.title,
            created_at=chain.now,
        )

    def build(self, input: dict[str, Any]) -> WireRequest:
        return WireRequest(
            method="POST",
            path="/v1/runs",
            body=canonical.dumps(input["body"]),
            timeout=_timeout(self.name),
            required=("run_id",),
            session_key=input.get("session_key"),
        )

    def intend(self, action: Action, chain: Chain) -> dict[str, Any]:
        run = Run.objects.select_for_update().get(action=action)
        if run.status != Run.Status.REQUESTED:
            raise Stale("run_started", "This run was started already.")
        return {}

    def accepted(self, action: Action, reply: Reply) -> Outcome:
        try:
            run_id = capabilities.check_run_id(reply.value["run_id"])
        except InvalidInput:
            return Outcome(Status.UNKNOWN, "reply_incomplete", "Hermes agreed but named no valid run id.")
        if Run.objects.filter(endpoint=action.endpoint, provider_run_id=run_id).exists():
            return Outcome(
                Status.UNKNOWN, "run_id_taken", "Hermes named a run that belongs to another request."
            )
        return Outcome(Status.APPLIED, "accepted", "Accepted: Hermes created the run.", {"run_id": run_id})

    def settle(self, action: Action, execution: Execution, outcome: Outcome, chain: Chain) -> None:
        run = Run.objects.select_for_update().get(action=action)
        if outcome.status == Status.APPLIED:
            run.move(
                Run.Status.QUEUED,
                provider_run_id=outcome.found["run_id"],
                status_from="receipt",
                started_at=chain.now,
                version=run.version + 1,
            )
            chain.append(
                Kind.RUN_STARTED,
                actor=WORKER,
                action=action.pk,
                run=run.pk,
                data={"provider_run_id": run.provider_run_id, "endpoint": action.endpoint.endpoint_id},
            )
            transaction.on_commit(lambda: publish("runs.tasks.follow", str(run.pk)), robust=True)
            return
        if outcome.status != Status.UNKNOWN:
            self._not_started(action)
            return
        run.moves_to(Run.Status.START_UNKNOWN, version=run.version + 1)

    def abandoned(self, approval: Approval, chain: Chain) -> None:
        if approval.action is not None:
            self._not_started(approval.action)

    def _not_started(self, action: Action) -> None:
        run = Run.objects.select_for_update().get(action=action)
        run.moves_to(Run.Status.NOT_STARTED, version=run.version + 1)

    def card(self, approval: Approval, viewer: User) -> Card:
        assert approval.action is not None
        return Card("runs/_start_card.html", {"action": approval.action, "run": approval.action.run})


class RunStop(_RunOperation):
    """POST /v1/runs/{run_id}/stop. A request to stop, not an end (rule 9)."""

    name = "run_stop"

    def ask(self, *, endpoint: Endpoint, input: dict[str, Any], user: User) -> Asked:
        run = Run.objects.filter(endpoint=endpoint, provider_run_id=input["run_id"]).first()
        if run is None:
            raise Stale("run_unknown", "The portal does not know this run.")
        _refuse_over(run)
        return Asked(
            input=input,
            shown=input,
            title=redaction.excerpt(f"Stop run “{run.title}”", TITLE),
            subject=f"run:{run.pk}",
            lane=run.lane,
            context=f"{run.get_status_display()} on {endpoint.endpoint_id}",
            snapshot={"status": run.status, "title": run.title},
            snapshot_shown={"status": run.status, "title": run.title},
        )

    def build(self, input: dict[str, Any]) -> WireRequest:
        return WireRequest(
            method="POST",
            path=run_path(input["run_id"], "stop"),
            body=b"{}",
            timeout=_timeout(self.name),
            required=("run_id", "status"),
        )

    def decidable(self, approval: Approval, choice: str, now: datetime) -> None:
        _refuse_over(_run_of(approval.action))

    def intend(self, action: Action, chain: Chain) -> dict[str, Any]:
        run = Run.objects.select_for_update().get(pk=_run_of(action).pk)
        _refuse_over(run)
        # from this commit on no answer is sent to the run: an answer right after a stop still runs its command
        run.stop_asked_at = chain.now
        run.version += 1
        run.save(update_fields=["stop_asked_at", "version"])
        return {"run_status": run.status}

    def accepted(self, action: Action, reply: Reply) -> Outcome:
        status = reply.value["status"]
        if reply.value["run_id"] != exact_input(action)["run_id"]:
            return Outcome(Status.UNKNOWN, "reply_contradicts", "Hermes answered about another run.")
        if status == Run.Status.STOPPING:
            return Outcome(Status.APPLIED, "stop_requested", "Stop requested. The run has not ended by this.")
        if status in Run.TERMINAL:
            return Outcome(
                Status.APPLIED, "already_over", f"The run was over already: {status}.", {"status": status}
            )
        return Outcome(
            Status.UNKNOWN, "reply_incomplete", "Hermes answered the stop with a status that proves nothing."
        )

    def refused(self, error: HermesError) -> Outcome | None:
        if isinstance(error, NotFound):
            return Outcome(
                Status.NOT_APPLIED,
                NOTHING_TO_STOP,
                "Hermes has nothing to stop: the run is over, or Hermes lost it.",
            )
        return None

    def settle(self, action: Action, execution: Execution, outcome: Outcome, chain: Chain) -> None:
        run = Run.objects.select_for_update().get(pk=_run_of(action).pk)
        run.next_poll_at = chain.now
        run.version += 1
        if (
            execution.sent_at is not None
            and outcome.status == Status.NOT_APPLIED
            and outcome.code != NOTHING_TO_STOP
            and run.status != Run.Status.STOPPING
        ):
            run.stop_asked_at = None  # proven that Hermes took no stop: another may be asked for
        run.save(update_fields=["next_poll_at", "version", "stop_asked_at"])

    def reconcile(self, action: Action, execution: Execution) -> Outcome | None:
        run = _run_of(action)
        if run.status in (Run.Status.STOPPING, Run.Status.CANCELLED):
            return Outcome(
                Status.APPLIED,
                "seen_stopping",
                f"Hermes says {run.get_status_display().lower()}: the stop arrived.",
            )
        return None

    def card(self, approval: Approval, viewer: User) -> Card:
        run = _run_of(approval.action)
        return Card("runs/_stop_card.html", {"action": approval.action, "run": run, "trail": trail(run)})


class RunApproval(_RunOperation):
    """POST /v1/runs/{run_id}/approval. Asked by Hermes, never by a form: its subject is a prompt (two gates)."""

    name = "run_approval"

    def ask(self, *, endpoint: Endpoint, input: dict[str, Any], user: User) -> Asked:
        raise Stale("not_asked_here", "A run's request is answered on its card in the queue.")

    def facts(self, subject: str, choice: str) -> dict[str, Any]:
        return prompts.facts(_prompt_of(subject), choice)

    def policy_input(self, approval: Approval, choice: str) -> dict[str, Any]:
        return self.choice_input(approval, choice).input

    def exact(self, approval: Approval) -> bytes:
        return prompts.exact_frame(
            _prompt_of(approval.action.subject if approval.action else approval.subject)
        )

    def decidable(self, approval: Approval, choice: str, now: datetime) -> None:
        prompts.prove_head(_prompt_of(approval.subject), now, alive=False)

    def choice_input(self, approval: Approval, choice: str) -> Asked:
        prompt = _prompt_of(approval.subject)
        input = prompts.answer_input(prompt, choice)
        shown = {"command": redaction.excerpt(prompt.command, 8000), "description": prompt.description}
        return Asked(
            input=self.validate(input),
            shown=input,
            title=redaction.excerpt(f"{CHOICES[choice][0]}: {prompt.command}", TITLE),
            subject=prompt.subject,
            lane=prompt.run.lane,
            key=f"prompt-{prompt.identity}-{choice}",
            context=f"Run “{prompt.run.title}”",
            snapshot=shown | {"exact_digest": prompt.exact_digest, "ordinal": prompt.ordinal},
            snapshot_shown=shown | {"exact_digest": prompt.exact_digest, "ordinal": prompt.ordinal},
            facts=prompts.facts(prompt, choice),
        )

    def build(self, input: dict[str, Any]) -> WireRequest:
        body = {name: value for name, value in input.items() if name != "run_id"}
        return WireRequest(
            method="POST",
            path=run_path(input["run_id"], "approval"),
            body=canonical.dumps(body),
            timeout=_timeout(self.name),
            required=("choice", "resolved"),
        )

    def intend(self, action: Action, chain: Chain) -> dict[str, Any]:
        run = Run.objects.select_for_update().get(prompts__pk=_prompt_of(action.subject).pk)
        prompt = _prompt_of(action.subject)
        proof = prompts.prove_head(prompt, chain.now, alive=True)
        prompt.move(Prompt.Status.ANSWERING)
        return {"run": str(run.pk), "head": proof}

    def accepted(self, action: Action, reply: Reply) -> Outcome:
        value, asked = reply.value, exact_input(action)
        found = {
            "choice": redaction.excerpt(redaction.redact(str(value["choice"])), 40),
            "resolved": redaction.excerpt(redaction.redact(str(value["resolved"])), 40),
        }
        named = value.get("run_id", asked["run_id"])
        if value["choice"] != asked["choice"] or named != asked["run_id"]:
            return Outcome(
                Status.UNKNOWN, "reply_contradicts", "Hermes confirmed something other than was asked.", found
            )
        if type(value["resolved"]) is not int or value["resolved"] != 1:
            sentence = f"Hermes says that it resolved {found['resolved']} requests, not one."
            return Outcome(Status.UNKNOWN, "resolved_other", sentence, found)
        prompt = _prompt_of(action.subject)
        if prompt.let_go and prompt.responded_at is None and not prompt.request_id:
            return Outcome(Status.UNKNOWN, RELEASED_OTHER, RELEASED_OTHER_SENTENCE, found)
        return Outcome(Status.APPLIED, "accepted", "Hermes took the answer.", found)

    def confirm(self, action: Action, sent_at: datetime) -> dict[str, Any]:
        return prompts.confirm_head(_prompt_of(action.subject), sent_at)

    def refused(self, error: HermesError) -> Outcome | None:
        if isinstance(error, Conflict):
            code = "approval_not_active" if error.reason == "approval_not_active" else "approval_not_pending"
            return Outcome(
                Status.NOT_APPLIED,
                code,
                "Hermes was no longer waiting for this answer. Nothing was released.",
            )
        if isinstance(error, NotFound):
            return Outcome(
                Status.NOT_APPLIED, "run_not_found", "Hermes no longer knows this run. Nothing was released."
            )
        return None

    def settle(self, action: Action, execution: Execution, outcome: Outcome, chain: Chain) -> None:
        prompt = _prompt_of(action.subject)
        choice = action.input_shown["choice"]
        if outcome.status == Status.APPLIED:
            prompts.close(chain, prompt, Prompt.Status.ANSWERED, "Answered from here.", choice=choice)
        elif outcome.status == Status.UNKNOWN:
            prompts.close(chain, prompt, Prompt.Status.IN_DOUBT, outcome.sentence, choice=choice)
        elif outcome.code in LAPSED:
            prompts.close(chain, prompt, LAPSED[outcome.code], outcome.sentence)
        else:
            prompts.reopen(chain, prompt)

    def abandoned(self, approval: Approval, chain: Chain) -> None:
        """The run still waits: a new card, under what holds now, as long as an answer can be sent."""
        prompts.reopen(chain, _prompt_of(approval.action.subject if approval.action else approval.subject))

    def reconcile(self, action: Action, execution: Execution) -> Outcome | None:
        if execution.code == RELEASED_OTHER:
            return None  # a person looks at what ran
        prompt = _prompt_of(action.subject)
        seen = prompts.observed(prompt, action.input_shown["choice"])
        if seen == "applied":
            return Outcome(
                Status.APPLIED, "seen_responded", "The event stream shows that this answer arrived."
            )
        if seen == "not_applied":
            return Outcome(
                Status.NOT_APPLIED,
                "seen_otherwise",
                "The event stream shows that the request ended in another way; this answer released nothing.",
            )
        return None

    def card(self, approval: Approval, viewer: User) -> Card:
        # the approval that carries a denial to Hermes is about an action; its action is about the prompt
        prompt = _prompt_of(approval.action.subject if approval.action else approval.subject)
        return Card(
            "runs/_prompt_card.html",
            {
                "prompt": prompt,
                "run": prompt.run,
                "trail": trail(prompt.run, before=prompt.ordinal),
                "blocked": prompts.blocked(prompt),
                "choices": [
                    {
                        "value": choice,
                        "label": CHOICES[choice][0],
                        "explained": CHOICES[choice][1],
                        "forbidden": approval.need(choice)["forbidden"],
                    }
                    for choice in approval.offered
                ],
            },
        )


NOTHING_TO_STOP = "nothing_to_stop"
LAPSED = {
    "approval_not_pending": Prompt.Status.LAPSED,
    "approval_not_active": Prompt.Status.VOID,
    "run_not_found": Prompt.Status.VOID,
}


def _timeout(operation: str) -> float:
    timeout = capabilities.CONTRACTS[operation].provider_timeout
    assert timeout is not None
    return timeout


def start_again_at(attempt: Execution | None) -> datetime | None:
    """When a full or draining Hermes (429, 503 with Retry-After) may be asked to start again; None if at any time."""
    if attempt is None or attempt.code not in BUSY_CODES or attempt.settled_at is None:
        return None
    return attempt.settled_at + timedelta(seconds=attempt.found.get("retry_after") or 0)


def _refuse_too_soon(endpoint: Endpoint) -> None:
    """Raises Stale while Hermes has asked to wait."""
    last = (
        Execution.objects.filter(
            action__tenant=endpoint.tenant_id, action__endpoint=endpoint, action__operation="run_start"
        )
        .order_by("-action__created_at", "-action__id")
        .first()
    )
    again = start_again_at(last)
    if last and again and clock.now() < again:
        raise Stale("too_soon", f"{last.sentence} It asked to wait until {again:%H:%M:%S} UTC.")


def _refuse_over(run: Run) -> None:
    """Raises Stale when there is nothing to stop, or a stop is on its way.

    After a stop whose outcome is unknown a person may ask for another: Hermes answers a repeated stop like the first.
    """
    if run.status not in Run.LIVE:
        raise Stale("run_over", f"There is nothing to stop: the run is {run.get_status_display().lower()}.")
    if run.stop_asked_at is not None and not _last_stop_unknown(run):
        raise Stale("stop_asked", f"A stop was sent already at {run.stop_asked_at:%H:%M:%S} UTC.")


def _last_stop_unknown(run: Run) -> bool:
    sent = Execution.objects.filter(
        action__subject=f"run:{run.pk}", action__operation="run_stop", sent_at__isnull=False
    )
    last = sent.order_by("-sent_at").first()
    return last is not None and last.status in (Status.UNKNOWN, Status.CLOSED)


def _run_of(action: Action | None) -> Run:
    assert action is not None
    return Run.objects.select_related("endpoint").get(pk=action.subject.removeprefix("run:"))


def _prompt_of(subject: str) -> Prompt:
    return Prompt.objects.select_related("run__endpoint", "run__requester").get(
        pk=subject.removeprefix("prompt:")
    )


def trail(run: Run, before: int | None = None) -> list[RunEvent]:
    """The last events that led to a moment, oldest first."""
    events = run.events.filter(ordinal__lt=before) if before is not None else run.events.all()
    return list(events.order_by("-ordinal")[:TRAIL])[::-1]
