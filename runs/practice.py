"""Practice runs of the demo: plain requests that the sandbox's scripted model plays as small stories."""

import secrets

from approvals import services
from approvals.models import Endpoint, User
from approvals.services import Requested

WAITING = "Rebuild the yearly report."
FINISHED = "Count the rows of each table."
REASONS = {
    WAITING: "The yearly report shows last year's totals (SUP-2214).",
    FINISHED: "Finance asked how complete the tables are.",
}


def start(user: User, endpoint: Endpoint, prompt: str = WAITING) -> Requested:
    """Asks for a practice run the way the start form does. Raises what `services.request` raises."""
    return services.request(
        user=user,
        endpoint=endpoint,
        operation="run_start",
        raw={"body": {"input": prompt}},
        reason=REASONS[prompt],
        key=f"practice-{secrets.token_hex(8)}",
    )
