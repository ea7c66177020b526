"""The registry of operations. runs and jobs register what only they know; only execution.py sends.

Everything else about an action (policy, approval, ledger, evidence) is the same for all operations.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from hermes_portal.hermes.client import Reply, WireRequest
from hermes_portal.hermes.errors import HermesError

if TYPE_CHECKING:
    from approvals.evidence import Chain
    from approvals.models import Action, Approval, Endpoint, Execution, User


class Stale(Exception):
    """What was reviewed is not what is there now; nothing is sent. `code` and `sentence` go on the card."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code, self.sentence = code, sentence


class NotYet(Stale):
    """May pass by itself within a moment; the ledger asks again before it gives up."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A validated request, before policy: what is asked, in canonical form and as people see it."""

    input: dict[str, Any]
    shown: dict[str, Any]
    title: str
    subject: str
    lane: str
    context: str = ""
    key: str = ""
    snapshot: dict[str, Any] = field(default_factory=dict)
    snapshot_shown: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Card:
    """What the decide page shows of a subject: a partial template and its context."""

    template: str
    context: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a sent mutation ended: `status` is applied, not_applied or unknown of Execution.Status."""

    status: str
    code: str
    sentence: str
    found: dict[str, Any] = field(default_factory=dict)


class Operation(Protocol):
    """One mutation of the provider. Methods that get a chain run inside its transaction and may not use the network."""

    name: str

    def validate(self, raw: dict[str, Any]) -> dict[str, Any]:
        """The canonical input. Pure. Raises errors.InvalidInput."""

    def ask(self, *, endpoint: "Endpoint", input: dict[str, Any], user: "User") -> Asked:
        """Describes a request and takes the snapshot it is made against. Raises Stale where there is nothing to do."""

    def asked(self, action: "Action", chain: "Chain") -> None:
        """The action was written: make the rows that belong to it (a Run, for a start)."""

    def build(self, input: dict[str, Any]) -> WireRequest:
        """Method, path and exact bytes. Pure: the same input gives the same bytes."""

    def facts(self, subject: str, choice: str) -> dict[str, Any]:
        """What policy may know of the provider's state, by root: {"prompt": {...}}."""

    def policy_input(self, approval: "Approval", choice: str) -> dict[str, Any]:
        """The input that policy weighs when an approval is looked at again."""

    def decidable(self, approval: "Approval", choice: str, now: datetime) -> None:
        """May this be decided at all, as things stand? Raises Stale."""

    def choice_input(self, approval: "Approval", choice: str) -> Asked:
        """For a prompt: the input that this choice means."""

    def intend(self, action: "Action", chain: "Chain") -> dict[str, Any]:
        """Last check before the intent is committed, with its own moves. Raises Stale. Returns evidence."""

    def confirm(self, action: "Action", sent_at: datetime) -> dict[str, Any]:
        """After the intent and before the first byte: a last look at what was observed since. May wait a moment.

        Raises Stale: then nothing is sent. Returns evidence.
        """

    def accepted(self, action: "Action", reply: Reply) -> Outcome:
        """Reads a 2xx reply."""

    def refused(self, error: HermesError) -> Outcome | None:
        """A better reading of a provider's refusal than the general one; None for the general one."""

    def settle(self, action: "Action", execution: "Execution", outcome: Outcome, chain: "Chain") -> None:
        """The outcome is written: move what belongs to it. Also called for a refusal, with the status refused."""

    def abandoned(self, approval: "Approval", chain: "Chain") -> None:
        """The approval ended and nothing was sent under it: let go of what waited for it, or ask again."""

    def reconcile(self, action: "Action", execution: "Execution") -> Outcome | None:
        """Reads (never writes) what came of an attempt whose outcome is unknown; None while it is not known."""

    def exact(self, approval: "Approval") -> bytes:
        """The exact bytes that a decision is about, unsealed. Only for a recorded look."""

    def card(self, approval: "Approval", viewer: "User") -> Card:
        """What the decide page shows."""


_OPERATIONS: dict[str, Operation] = {}


def register(operation: Operation) -> None:
    _OPERATIONS[operation.name] = operation


def get(name: str) -> Operation:
    """Raises KeyError for an operation that is not offered: closed policy (rule 5)."""
    return _OPERATIONS[name]


def offered(name: str) -> bool:
    return name in _OPERATIONS
