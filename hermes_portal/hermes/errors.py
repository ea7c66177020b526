"""The error tree of the provider client. Its leaves answer one question: was anything changed?

Three branches hold every failure of a mutation (rule 1):

* `NotSent`: not one byte of the request left the portal. The action can be called not applied.
* `Refused`: Hermes answered in full and said no. Definitive, nothing was changed.
* `OutcomeUnknown`: bytes may have left and no full, readable answer proves what came of them. Never sent
  again; settled by reading or by a person.

Reads raise the same leaves; there `changed` has no meaning. `NotAStream` belongs to the event stream alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Literal, Self

Changed = Literal["no", "refused", "unknown"]

DETAIL_LIMIT = 4096
"""Characters of provider text that an error carries. Much more than a page shows, because secrets are
masked by the redactor before a text is shortened for people (rule 10)."""

RETRY_AFTER_LIMIT = 300.0
"""Seconds. A provider, or what poses as one, cannot make us wait longer than five minutes (case 21 g)."""


class HermesError(Exception):
    """Anything that went wrong between the portal and Hermes.

    `code` is stable and for machines, `sentence` is for people and says what to do, `reason` is the
    provider's own error code if it sent a well-formed one (such as `approval_not_pending`). `detail` is
    bounded provider text that is NOT redacted: `str()` and `repr()` never show it, so that it cannot slip
    into a log.
    """

    code: ClassVar[str] = "hermes_error"
    changed: ClassVar[Changed] = "unknown"
    says: ClassVar[str] = "Something went wrong on the way to Hermes. Look at the endpoint's health."

    def __init__(
        self,
        detail: str = "",
        *,
        sentence: str = "",
        reason: str = "",
        retry_after: float | None = None,
        status: int | None = None,
    ) -> None:
        self.sentence = sentence or self.says
        self.detail = bounded(detail)
        self.reason = reason
        self.retry_after = retry_after
        self.status = status
        super().__init__(self.sentence)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(code={self.code!r}, status={self.status!r}, reason={self.reason!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # A worker process hands errors on by pickle; the default would call __init__ with the sentence as
        # detail.
        return _restore, (type(self), self.__dict__.copy())

    @classmethod
    def leaves(cls) -> Iterator[type[Self]]:
        """Every class of this branch that can be raised (those without subclasses)."""
        for child in cls.__subclasses__():
            if child.__subclasses__():
                yield from child.leaves()
            else:
                yield child


def _restore(kind: type[HermesError], state: dict[str, Any]) -> HermesError:
    error = kind.__new__(kind)
    Exception.__init__(error, state["sentence"])
    error.__dict__.update(state)
    return error


# Nothing left the portal.


class NotSent(HermesError):
    """Proven: no byte of the request was written to the provider."""

    code = "not_sent"
    changed = "no"
    says = "Nothing was sent to Hermes."


class AuthenticationMissing(NotSent):
    """The endpoint has no token that could be sent."""

    code = "authentication_missing"
    says = "Nothing was sent: the endpoint has no usable token. An admin of the tenant can set one."


class TenantMismatch(NotSent):
    """The call was made for another tenant than the endpoint is bound to."""

    code = "tenant_mismatch"
    says = "Nothing was sent: this endpoint belongs to another tenant."


class DeadlineExpired(NotSent):
    """The deadline, or the intent's `send_until`, passed before the request line was written."""

    code = "deadline_expired"
    says = "Nothing was sent: the time for it had run out. Ask again if it is still wanted."


class Cancelled(NotSent):
    """The work was interrupted before the request line was written."""

    code = "cancelled"
    says = "Nothing was sent: the work was interrupted first. Ask again if it is still wanted."


class AddressRefused(NotSent):
    """The endpoint's address is not one that the portal connects to (case 49)."""

    code = "address_refused"
    says = (
        "Nothing was sent: the endpoint's address is not allowed. "
        "An admin can name its network in the endpoint's allow list."
    )


class ConnectFailed(NotSent):
    """No connection: name not found, refused, timed out, or TLS failed."""

    code = "connect_failed"
    says = "Nothing was sent: Hermes could not be reached. Check that it is running, then ask again."


class InvalidInput(NotSent):
    """Input that cannot form a request. `field` names the member; the sentence says what is wrong with it."""

    code = "invalid_input"
    says = "Nothing was sent: the input is not valid. Correct it and ask again."

    def __init__(self, field: str, sentence: str = "", *, detail: str = "") -> None:
        super().__init__(detail, sentence=sentence)
        self.field = field


# Hermes said no.


class Refused(HermesError):
    """A complete answer with a status that is definitive: nothing was changed."""

    code = "refused"
    changed = "refused"
    says = "Hermes refused the request. Nothing was changed."


class BadRequest(Refused):
    """400."""

    code = "bad_request"
    says = "Hermes did not accept the input. Nothing was changed. Correct it and ask again."


class CredentialRefused(Refused):
    """401. The caller marks the endpoint and stops asking (case 21 f)."""

    code = "credential_refused"
    says = "Hermes refused the endpoint's token. Nothing was changed. An admin must set the right token."


class Forbidden(Refused):
    """403. Contract 0.19 (b): only for an `Origin` header or OPTIONS, so usually something in front of
    Hermes."""

    code = "forbidden"
    says = "Hermes, or a proxy before it, forbids this request. Nothing was changed. Ask its admin."


class NotFound(Refused):
    """404. `reason` is `run_not_found` for a run that this process does not know."""

    code = "not_found"
    says = "Hermes does not know this id. It may have been restarted, or kept the record only for an hour."


class Conflict(Refused):
    """409. `reason` tells `approval_not_active`, `approval_not_pending` and `idempotency_key_conflict`
    apart."""

    code = "conflict"
    says = "Hermes is no longer in the state that this request needs. Nothing was changed. Look again."


class TooLarge(Refused):
    """413."""

    code = "too_large"
    says = "The request is larger than Hermes accepts (10,000,000 bytes). Nothing was changed. Shorten it."


class Saturated(Refused):
    """429. Spec runs, shared limits: Chat, Responses and runs share the slots."""

    code = "saturated"
    says = (
        "Hermes has no free slot; its slots are shared with Chat and Responses. Nothing was started. "
        "Start again later."
    )


class Unsupported(Refused):
    """501."""

    code = "unsupported"
    says = "This Hermes does not offer the operation. Nothing was changed."


class Draining(Refused):
    """503 with the code `gateway_draining`: Hermes is going down and takes no new work."""

    code = "draining"
    says = (
        "Hermes is shutting down and takes no new work. Nothing was started. Start again after its restart."
    )


# Nobody knows.


class OutcomeUnknown(HermesError):
    """Bytes may have left, and no complete, readable answer proves the outcome. Never sent again (rule 1)."""

    code = "outcome_unknown"
    changed = "unknown"
    says = (
        "It is not known whether Hermes did it. It is not sent again; the portal looks at Hermes to find out."
    )


class ServerFault(OutcomeUnknown):
    """A 5xx that is neither 501 nor a declared drain."""

    code = "server_fault"
    says = "Hermes answered with an internal error. It may or may not have acted; it is not sent again."


class UnexpectedStatus(OutcomeUnknown):
    """A status outside the contract: it proves nothing."""

    code = "unexpected_status"
    says = (
        "Something answered that does not speak like Hermes. It may or may not have acted; check the address."
    )


class Redirected(OutcomeUnknown):
    """A 3xx. Not followed and the token not passed on; what answered is not Hermes, so nothing is proven."""

    code = "redirected"
    says = "The endpoint's address answered with a redirect, which is never followed. Check the base URL."


class ReplyLost(OutcomeUnknown):
    """The request went out, and the reply did not arrive in full or in time."""

    code = "reply_lost"
    says = "The answer of Hermes was lost. It may or may not have acted; it is not sent again."


class ReplyUndecodable(OutcomeUnknown):
    """The reply is compressed, too large, or not strict JSON."""

    code = "reply_undecodable"
    says = "The answer of Hermes could not be read. It may or may not have acted; it is not sent again."


class ReplyIncomplete(OutcomeUnknown):
    """A 2xx without a member that the contract promises, such as a 202 without a valid run id."""

    code = "reply_incomplete"
    says = "Hermes agreed, but its answer lacks what proves it. It may have acted; it is not sent again."


class StreamSilent(OutcomeUnknown):
    """Not even a keepalive comment within the idle limit. Only for the event stream."""

    code = "stream_silent"
    says = "The event stream went silent. What happened meanwhile is read from the run's status."


class NotAStream(HermesError):
    """The events address answered with something that is no event stream (case 21). `status` is its
    status."""

    code = "not_a_stream"
    changed = "no"
    says = "The endpoint did not answer with an event stream. Check its base URL and any proxy before it."


DEFINITIVE: dict[int, type[Refused]] = {
    400: BadRequest,
    401: CredentialRefused,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    429: Saturated,
    501: Unsupported,
}


def from_status(
    status: int, *, detail: str = "", reason: str = "", retry_after: float | None = None
) -> HermesError:
    """The leaf for a complete reply whose HTTP status is not a success.

    `reason` is the provider's error code. A 503 is definitive only if Hermes itself says that it drains:
    any other 503 may come from a proxy that had already passed the request on.
    """
    kind: type[HermesError]
    if status in DEFINITIVE:
        kind = DEFINITIVE[status]
    elif status == 503 and reason == "gateway_draining":
        kind = Draining
    elif status >= 500:
        kind = ServerFault
    elif 300 <= status < 400:
        kind = Redirected
    else:
        kind = UnexpectedStatus
    return kind(detail, reason=reason, retry_after=retry_after, status=status)


def bounded(text: str, limit: int = DETAIL_LIMIT) -> str:
    """`text` in at most `limit` characters, cut at white space where there is some.

    A cut in the middle of a word could leave half of a secret, which no redactor knows any more.
    """
    if len(text) <= limit:
        return text
    head = text[:limit]
    whole = re.match(r".*\s", head, re.DOTALL)
    return whole.group().rstrip() if whole else ""


def retry_after_seconds(text: str | None, now: datetime | None = None) -> float | None:
    """Seconds of a `Retry-After` value (RFC 9110, 10.2.3: a number or a date), 0 to 300; None if
    unreadable."""
    text = (text or "").strip()
    if re.fullmatch(r"[0-9]+", text):
        seconds = RETRY_AFTER_LIMIT if len(text) > 9 else float(text)
    else:
        try:
            moment = parsedate_to_datetime(text)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        seconds = (moment - (now or datetime.now(UTC))).total_seconds()
    return min(max(seconds, 0.0), RETRY_AFTER_LIMIT)
