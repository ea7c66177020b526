"""The ways approvals and actions change. Atomic, keyword-only, one reading of the clock, evidence with every step."""

from approvals.services.actions import DENIAL, make_action, weigh
from approvals.services.approvals import (
    close_approval,
    earlier_denials,
    expire,
    open_approval,
    revoke,
    seen_digest,
    withdraw,
)
from approvals.services.decisions import decide
from approvals.services.looks import look, may_look
from approvals.services.requests import Requested, request

__all__ = [
    "DENIAL",
    "Requested",
    "close_approval",
    "decide",
    "earlier_denials",
    "expire",
    "look",
    "make_action",
    "may_look",
    "open_approval",
    "request",
    "revoke",
    "seen_digest",
    "weigh",
    "withdraw",
]
