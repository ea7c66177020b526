"""Log records are redacted like every other text that may carry something of a provider (rule 10)."""

import logging
from typing import Final

from hermes_portal import redaction

MOST_REMEMBERED: Final = 200
# Endpoint tokens that this process has opened, the latest last. Nothing about an opaque token says that it is one.
_opened: dict[str, None] = {}


def remember(token: str) -> None:
    """From now on this token is masked in the log, in whatever encoding it turns up."""
    _opened.pop(token, None)
    _opened[token] = None
    while len(_opened) > MOST_REMEMBERED:
        _opened.pop(next(iter(_opened)), None)


class Redacting(logging.Filter):
    """Masks secrets in the finished message and in the traceback's text."""

    def filter(self, record: logging.LogRecord) -> bool:
        own = tuple(_opened)
        record.msg, record.args = redaction.redact(record.getMessage(), own=own), ()
        if record.exc_info:
            trace = logging.Formatter().formatException(record.exc_info)
            record.exc_text, record.exc_info = redaction.redact(trace, own=own), None
        return True
