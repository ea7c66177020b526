"""What each state of a run means to people and what to do next (spec runs: poll run status; rule 9)."""

from dataclasses import dataclass

from runs.models import Run

Status = Run.Status
EFFECTS = "What its tools did before may have taken effect and is not rolled back."


@dataclass(frozen=True, slots=True)
class Meaning:
    """`means` is what is known, `next` what a person can do."""

    means: str
    next: str


MEANINGS: dict[str, Meaning] = {
    Status.REQUESTED: Meaning(
        "Asked for here; Hermes has not confirmed it yet.",
        "There is nothing to stop yet. It is sent by itself, or after the approval that policy wants.",
    ),
    Status.NOT_STARTED: Meaning(
        "Hermes did not start it, and this is certain.",
        "Read why below. A new start is a new request by a person.",
    ),
    Status.START_UNKNOWN: Meaning(
        "The start was sent and no receipt came back, so a run may exist at Hermes that nobody here can name.",
        "It is not sent again. Hermes has no list of runs: look for its effects before you ask for another.",
    ),
    Status.QUEUED: Meaning(
        "Hermes accepted it; that is a receipt, not a beginning of work.",
        "Nothing to do: the events follow here.",
    ),
    Status.RUNNING: Meaning("Hermes works on it.", "Nothing to do: the events follow here."),
    Status.WAITING: Meaning(
        "Hermes says that it waits for an answer. It may go on saying so after its wait has run out.",
        "Open the card of the oldest request; a reviewer decides there.",
    ),
    Status.STOPPING: Meaning(
        "Stop requested. Hermes took the request; the run has not ended by that.",
        "Wait for the end that Hermes reports. A tool call that is under way may finish.",
    ),
    Status.COMPLETED: Meaning(
        "The agent came to its end without a failure mark. That is not a check of its work.",
        "Read the output; keep it with the evidence.",
    ),
    Status.FAILED: Meaning(
        f"The agent reported or hit a failure. {EFFECTS}",
        "Read the error, then check what its tools had done.",
    ),
    Status.CANCELLED: Meaning(
        f"Hermes ended the run early: on request, or because it was shut down. {EFFECTS}",
        "Check what its tools had done before the end.",
    ),
    Status.INTERRUPTED: Meaning(
        f"Hermes ended it before its work was done. {EFFECTS}",
        "Check what its tools had done, then ask anew if needed.",
    ),
    Status.LOST: Meaning(
        f"Hermes no longer knows it: it restarted or forgot the run. How it ended is unknown. {EFFECTS}",
        "Look for its effects. That it is gone does not prove that it never ran.",
    ),
}

# After a gap nothing proves any more which request is the oldest one (rule 6).
BLOCKED = Meaning(
    MEANINGS[Status.WAITING].means,
    "After a gap it cannot be answered from here. Ask for a stop, or answer it at Hermes itself.",
)


def meaning_of(run: Run) -> Meaning:
    """The meaning of a run's state, as it stands."""
    unproven = run.gaps and not run.features.get("request_id")
    return BLOCKED if run.status == Status.WAITING and unproven else MEANINGS[Status(run.status)]


STREAMS: dict[str, str] = {
    Run.Stream.NONE: "not read yet",
    Run.Stream.OPEN: "being read",
    Run.Stream.ENDED: "read to its end",
    Run.Stream.BROKEN: "broken off; the state comes from polling",
}
# Hermes shares its slots for runs with two other doors (spec runs: shared limits).
BUSY_CODES = frozenset({"saturated", "draining"})
BUSY = (
    "Nothing started. Hermes shares ten slots (unless configured otherwise) between runs, Chat and Responses. Ask "
    "again no sooner than it said; that will be a new request."
)
