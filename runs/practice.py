"""Practice runs of the demo: plain requests that the sandbox's scripted model plays as small stories.

They are asked for by an account of the demo's own, to which nobody can sign in, so that whoever tries the demo as a
reviewer may decide. The reason says who pressed the button.
"""

import secrets

from approvals import services
from approvals.models import Endpoint, User
from approvals.services import Requested

ACCOUNT = "practice"
WAITING = "Rebuild the yearly report."
FINISHED = "Count the rows of each table."
REASONS = {
    WAITING: "The yearly report shows last year's totals (SUP-2214).",
    FINISHED: "Finance asked how complete the tables are.",
}


def start(endpoint: Endpoint, prompt: str = WAITING, *, by: str) -> Requested:
    """Asks for a practice run the way the start form does. Raises what `services.request` raises."""
    return services.request(
        user=User.objects.get(username=ACCOUNT),
        endpoint=endpoint,
        operation="run_start",
        raw={"body": {"input": prompt}},
        reason=f"{REASONS[prompt]} Practice, started by {by}.",
        key=f"practice-{secrets.token_hex(8)}",
    )
