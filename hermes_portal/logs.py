"""Log records are redacted like every other text that may carry something of a provider (rule 10)."""

import logging

from hermes_portal import redaction


class Redacting(logging.Filter):
    """Masks secrets in the finished message and in the traceback's text."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = redaction.redact(record.getMessage()), ()
        if record.exc_info:
            trace = logging.Formatter().formatException(record.exc_info)
            record.exc_text, record.exc_info = redaction.redact(trace), None
        return True
