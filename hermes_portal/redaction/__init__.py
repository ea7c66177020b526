"""Secrets out, hidden things visible: what stands before every store, page, log and export of provider text.

Rule 10 (everything from Hermes is hostile text). Hermes' own redactor is not used: it misses credentials in
addresses and `-u user:password`, keeps ends of tokens, and needs minutes for hostile text (case F16).

**What it promises.** A secret becomes `[redacted:kind]` with nothing of it left. Only values are masked: the
command around them stays readable. A value that could itself run something is masked as `[redacted:kind,
could be a command]`, so that a mask is never the curtain for a command. References (`$TOKEN`, `$(cat key)`)
stay: they are structure. Time is linear in the text; the patterns never go back over what they passed, and
the number of candidates is bounded the same way on every machine (`scan.WORK_LIMIT`) instead of by a clock,
because the outcome is part of the digest a reviewer decides on (rule 3). Whatever passes a limit is replaced
whole, never let through. Nothing here reads a clock, a database or a network.

**Marks.** `[redacted:kind]` for secrets; `[U+202E]` for a hidden character and `[U+200B ×40]` for a run of
one; `[300 spaces]`, `[9 tabs]`, `[44 blanks]`, `[12 blank lines]` for blank runs. LF, TAB and CRLF stay;
a CR alone is a mark, since it overwrites a line in a terminal.

**Imitation and idempotence.** The stored text is plain, so a provider can write `[redacted:password]` too. No
function from text to text can both keep its own marks when it meets them again and take apart the same
characters written by somebody else. What tells them apart is therefore kept beside the characters, in the
type: `redact` returns a `Redacted`, a `str` that says "the marks in here are ours".
  * In a plain `str` everything that looks like a mark is an imitation; its bracket is made visible
    (`[U+005B]redacted:password]`), so `segments` never draws it as a mark.
  * In a `Redacted`, marks stay, and secrets are looked for around them: `redact(redact(x)) == redact(x)`.
  * What a column of redacted text gives back may be wrapped: `redact(Redacted(row.text))`. Without the wrap
    nothing leaks; only the marks then show as quoted ones.

**Streams.** `StreamRedactor` gives out text only up to places that no secret can span, never rewrites, and
holds back at most 4 KiB; longer than that is masked until its end.
"""

from .marks import MAX_INPUT, Redacted, excerpt, segments
from .stream import StreamRedactor
from .text import TOO_COSTLY, TOO_DEEP, TOO_LARGE, redact, redact_value

#: Changes whenever the same text could come out differently. Part of the evidence and of what is decided on.
VERSION = "1"

#: What stands for a whole text that could not be shown: nobody has seen any of it.
WITHHELD = frozenset({TOO_LARGE, TOO_COSTLY, TOO_DEEP})

__all__ = [
    "MAX_INPUT",
    "VERSION",
    "WITHHELD",
    "Redacted",
    "StreamRedactor",
    "excerpt",
    "redact",
    "redact_value",
    "segments",
]
