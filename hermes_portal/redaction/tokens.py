"""Secrets that are known by their own shape: prefixed tokens, JWT, private keys, password hashes, base64 of these."""

import binascii
import re
from collections.abc import Iterator

from .shadow import OPAQUE, Shadow
from .values import COMMAND, Span, Work

#: kind -> shape. Lengths are short on purpose: a token cut off by a preview limit is still most of a token.
_PREFIXED: tuple[tuple[str, str], ...] = (
    ("aws access key", r"(?:AKIA|ASIA|AROA|AIDA|AGPA|ANPA|ANVA|AIPA|ABIA|ACCA|A3T[A-Z0-9])[A-Z0-9]{8,}+"),
    ("github token", r"(?:gh[pousr]_[A-Za-z0-9]{8,}+|github_pat_[A-Za-z0-9_]{8,}+)"),
    (
        "gitlab token",
        r"gl(?:pat|dt|rt|rtr|ptt|soat|cbt|ft|imt|agent|oas|ffct)-[A-Za-z0-9_.-]{8,}+|GR1348941[A-Za-z0-9_-]{8,}+",
    ),
    ("slack token", r"(?:xox[abceoprs]-[A-Za-z0-9.-]{8,}+|xapp-[A-Za-z0-9-]{8,}+)"),
    ("stripe key", r"(?:(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{6,}+|whsec_[A-Za-z0-9+/=]{8,}+)"),
    ("anthropic key", r"sk-ant-[A-Za-z0-9_-]{6,}+"),
    ("openai key", r"sk-(?:(?:proj|svcacct|admin|or|None)-[A-Za-z0-9_-]{6,}+|(?![a-z]{1,20}(?:-[a-z]{1,20}){1,9}+(?![\w-]))[A-Za-z0-9_-]{8,}+)"),
    ("google key", r"(?:AIza[A-Za-z0-9_-]{8,}+|ya29\.[A-Za-z0-9_.-]{8,}+|GOCSPX-[A-Za-z0-9_-]{8,}+)"),
    ("npm token", r"npm_[A-Za-z0-9]{10,}+"),
    ("pypi token", r"pypi-[A-Za-z0-9_-]{16,}+"),
    ("sendgrid key", r"SG\.[A-Za-z0-9_-]{8,}+(?:\.[A-Za-z0-9_-]*+)?"),
    ("twilio key", r"SK[0-9a-f]{24,32}+(?![A-Za-z0-9])"),
    ("vault token", r"(?:hv[sbr]\.[A-Za-z0-9_-]{8,}+|s\.[A-Za-z0-9]{24}(?![A-Za-z0-9]))"),
    ("hugging face token", r"(?:hf|api_org)_[A-Za-z0-9]{10,}+"),
    ("cloud token", r"(?:do[opr]_v1_[a-f0-9]{8,}+|dapi[a-f0-9]{16,}+|tskey-[A-Za-z0-9-]{8,}+|fly?o1_[A-Za-z0-9_-]{8,}+|FlyV1[A-Za-z0-9_-]{8,}+)"),
    ("shop token", r"(?:shp(?:at|ca|pa|ss)_[A-Fa-f0-9]{8,}+|sq0[a-z]{3}-[A-Za-z0-9_-]{8,}+|EAAA[A-Za-z0-9_-]{40,}+)"),
    ("mail key", r"(?:key-[0-9a-f]{16,32}+|[0-9a-f]{32}-us[0-9]{1,2}|xkeysib-[a-f0-9-]{16,}+|re_[A-Za-z0-9]{8}_[A-Za-z0-9]{8,}+)"),
    ("registry token", r"(?:dckr_(?:pat|oat)_[A-Za-z0-9_-]{8,}+|rubygems_[a-f0-9]{8,}+|cio[A-Za-z0-9]{32}|oy2[a-z0-9]{43})"),
    ("monitoring key", r"(?:gl(?:sa|c)_[A-Za-z0-9_+/=]{8,}+|NRAK-[A-Z0-9]{8,}+|sntrys?_[A-Za-z0-9_+/=-]{8,}+|phc_[A-Za-z0-9]{16,}+)"),
    (
        "service token",
        r"(?:lin_api_|ntn_|figd_|PMAK-|dp\.(?:pt|st|ct|sa)\.|sbp_|pscale_(?:tkn|pw|oauth)_|r8_|gsk_|xai-|pplx-|ATATT3|ATCTT3|HRKU-"
        r"|pat-na1-|nfp_|vercel_|CFPAT-|EZ[AT]K|frwk|tvly-|csk-|fw_|nvapi-|co_|AGE-SECRET-KEY-1|ops_eyJ|sgp_|rpa_|lsv2_(?:pt|sk)_)"
        r"[A-Za-z0-9_.+/=-]{12,}+",
    ),
    (
        "api key",
        r"[a-z]{1,16}_(?:live|test|prod|dev|staging|stage|sandbox|secret|sk|pk|pat|key|api|token)_(?=[A-Za-z]*+[0-9]|[A-Za-z0-9]{24})"
        r"[A-Za-z0-9_-]{8,}+",
    ),
)
_PREFIX = re.compile(
    r"(?<![A-Za-z0-9])(?:" + "|".join(f"(?P<p{i}>{shape})" for i, (_, shape) in enumerate(_PREFIXED)) + ")", re.ASCII
)
#: Only a long word can be such a token; looking for words first makes ordinary text cheap.
_WORD = re.compile(r"[A-Za-z0-9_\-.]{11,}+")
_JWT_MINIMUM = 16


def tokens(twin: Shadow, work: Work) -> Iterator[Span]:
    """Tokens with a known prefix, and JWT."""
    text = twin.text
    for word in _WORD.finditer(text):
        start, end = word.span()
        for match in _PREFIX.finditer(text, start, end):
            work.spend()
            kind = _PREFIXED[int((match.lastgroup or "p0")[1:])][0]
            tail = re.compile(r"[A-Za-z0-9_+/=-]*+").match(text, match.end()) if match.end() == end else None
            stop = tail.end() if tail else match.end()
            yield Span(match.start(), stop, kind, match.start(), stop)
        if end - start >= _JWT_MINIMUM:
            yield from _jwt(text, start, end, work)


def _jwt(text: str, start: int, end: int, work: Work) -> Iterator[Span]:
    at = text.find("eyJ", start, end)
    if at < 0:
        return
    work.spend()
    bounded = at == start or not text[at - 1].isalnum()
    if not bounded:
        second = text.find(".eyJ", at, end)
        if second < 0:
            dash = re.compile(r"[_.-]eyJ").search(text, at, end)
            if not dash:
                return
            at, bounded = dash.start() + 1, True
    if end - at >= _JWT_MINIMUM:
        yield Span(at, end, "jwt", at, end)


_TELEGRAM = re.compile(r"(?<![0-9])[0-9]{6,12}:A[A-Za-z0-9_-]{30,}+")
_WEBHOOK = re.compile(
    r"(?:hooks\.slack\.com/(?:services|workflows|triggers)/|discord(?:app)?\.com/api/webhooks/|webhook\.office\.com/webhookb2/"
    rf"|hooks\.zapier\.com/hooks/catch/|maker\.ifttt\.com/trigger/)(?P<value>[^\s\"'<>\\{OPAQUE}]{{6,}}+)",
    re.ASCII,
)
_HASH = re.compile(
    rf"\$(?:1|2[abxy]?|5|6|7|y|gy|apr1|md5|argon2(?:id|i|d)|scrypt|pbkdf2[\w-]{{0,16}}+)\$[^\s:\"'`<>|;&{OPAQUE}]{{8,}}+"
    rf"|\{{S?(?:SHA|MD5|SHA256|SHA512|CRYPT)\}}[A-Za-z0-9+/$.]{{16,}}+=*",
    re.ASCII,
)
_DJANGO_HASH = re.compile(r"(?:pbkdf2_sha(?:1|256)|argon2|bcrypt_sha256|scrypt)\$[^\s:\"'`<>|;&]{16,}+", re.ASCII)
_GOOGLE_REFRESH = re.compile(r"(?<![A-Za-z0-9/])1//0[A-Za-z0-9_-]{16,}+")


def shapes(twin: Shadow, work: Work) -> Iterator[Span]:
    """Bot tokens, webhook addresses, password hashes, AWS secret keys standing alone."""
    text = twin.text
    if ":A" in text:
        yield from _plain(_TELEGRAM, text, "telegram bot token", work)
    if "hook" in text or "maker.ifttt" in text:
        for match in _WEBHOOK.finditer(text):
            work.spend()
            yield Span(*match.span("value"), "webhook", match.start(), match.end())
    if "$" in text:
        yield from _plain(_HASH, text, "password hash", work)
        yield from _plain(_DJANGO_HASH, text, "password hash", work)
    elif "}" in text:
        yield from _plain(_HASH, text, "password hash", work)
    if "1//0" in text:
        yield from _plain(_GOOGLE_REFRESH, text, "google key", work)
    yield from _aws_secrets(text, work)


def _plain(pattern: re.Pattern[str], text: str, kind: str, work: Work) -> Iterator[Span]:
    for match in pattern.finditer(text):
        work.spend()
        yield Span(match.start(), match.end(), kind, match.start(), match.end())


_FORTY = re.compile(r"(?<![A-Za-z0-9+/=_.~$-])[A-Za-z0-9+/]{40}(?![A-Za-z0-9+/=_-])")
_PATH_PART = re.compile(r"[A-Z]?[a-z]{2,}[0-9]*|[A-Z]{2,}|[0-9]+|[A-Z]?[a-z]+(?:[A-Z][a-z]+)*|", re.ASCII)


def _aws_secrets(text: str, work: Work) -> Iterator[Span]:
    for match in _FORTY.finditer(text):
        work.spend()
        found = match[0]
        if not (re.search("[a-z]", found) and re.search("[A-Z]", found) and re.search("[0-9+]", found)):
            continue
        if "/" in found and all(_PATH_PART.fullmatch(part) for part in found.split("/")):
            continue
        yield Span(match.start(), match.end(), "aws secret key", match.start(), match.end())


_SEPARATOR = r"(?:\s|\\++[nrt]|[\"',\\]|(?<=\n)[->+](?=[A-Za-z0-9+/]{16}))"
_HEADER = r"(?:Proc-Type:[ ][0-9],ENCRYPTED|DEK-Info:[ ][A-Z0-9-]+,[0-9A-Fa-f]+|(?:Version|Comment|Hash|Charset):[ ][\w .,+@()/-]{0,100}+)"
_SHORT_RUN = r"[A-Za-z0-9+/=]{1,15}+"
BODY = re.compile(
    rf"""(?:{_SEPARATOR}*+(?:[A-Za-z0-9+/=]{{16,}}+|{_HEADER}))*+
         (?:(?:{_SEPARATOR}*+{_SHORT_RUN}){{1,2}}+(?={_SEPARATOR}*+-{{4,5}}[ ]?END[ ])
           |(?:(?<=[A-Za-z0-9+/=]{{60}})|(?<=-----)){_SEPARATOR}*+{_SHORT_RUN}(?=[ \t]*+\r?\n|{_SEPARATOR}*+(?:-{{0,5}}\Z|\.\.\.|…)))?
         (?P<end>{_SEPARATOR}*+-{{4,5}}[ ]?END[ ][A-Z0-9 ]{{0,60}}+-{{0,5}}+)?""",
    re.VERBOSE,
)
_BEGIN = re.compile(r"BEGIN [A-Z0-9 ]{0,40}?PRIVATE KEY(?: BLOCK)?[ ]?-{0,5}+")
_BARE_KEY = re.compile(
    r"(?:b3BlbnNzaC1rZXktdjE|M(?:II[A-Z][A-Za-z0-9+/]{1,2}IBA(?:AK[BC]|DAN)|HcCAQEE|IG[A-Z]AgEAM|C4CAQAwBQYDK2V))[A-Za-z0-9+/=]{8,}+"
)
_PUTTY = re.compile(r"Private-Lines:[ ][0-9]{1,4}+")
_END = re.compile(r"-{4,5}[ ]?END [A-Z0-9 ]{0,40}?PRIVATE KEY(?: BLOCK)?-{0,5}+")
_BACK_SEPARATOR = r"(?:\s|[nrt]\\++|[\"',\\])"
_BACKWARDS = re.compile(
    rf"(?:{_BACK_SEPARATOR}*+[A-Za-z0-9+/=]{{1,15}}+(?={_BACK_SEPARATOR}))?(?:{_BACK_SEPARATOR}*+[A-Za-z0-9+/=]{{16,}}+)++"
    rf"(?:{_BACK_SEPARATOR}++[A-Za-z0-9+/=]{{1,15}}+(?=\Z))?"
)
_LOWER_WORD = re.compile(r"(?<![A-Za-z0-9+/=])[a-z/ ]{2,}(?![A-Za-z0-9+/=])")


def private_keys(twin: Shadow, work: Work) -> Iterator[Span]:
    """PEM, OpenSSH, PGP and PuTTY private keys: whole, cut at the end, cut at the start, or their body alone."""
    text = twin.text
    last = 0
    if "PRIVATE KEY" in text:
        for match in _BEGIN.finditer(text):
            work.spend()
            if match.start() < last:
                continue
            body = BODY.match(text, match.end())
            start = match.start()
            while start > last and match.start() - start < 6 and text[start - 1] in "- ":
                start -= 1
            last = max(last, body.end() if body else match.end())
            if body and body.end() > match.end():
                yield _key(text, start, body.end(), text[match.end() : body.start("end") if body["end"] else body.end()])
        yield from _keys_cut_at_start(text, work)
    yield from _key_bodies(text, _BARE_KEY, work)
    if "Private-Lines" in text:
        yield from _key_bodies(text, _PUTTY, work)


def _key_bodies(text: str, pattern: re.Pattern[str], work: Work) -> Iterator[Span]:
    at = 0
    while match := pattern.search(text, at):
        work.spend()
        body = BODY.match(text, match.end())
        at = max(match.end(), body.end() if body else 0)
        start = match.end() if pattern is _PUTTY else match.start()
        if at > start:
            yield _key(text, start, at, text[start:at])


def _keys_cut_at_start(text: str, work: Work) -> Iterator[Span]:
    last = 0
    for match in _END.finditer(text):
        work.spend()
        before = _BACKWARDS.match(text[last : match.start()][::-1])
        length = len(before[0]) if before else 0
        if length:
            start = match.start() - length
            yield _key(text, start, match.end(), text[start : match.start()])
        last = match.end()


def _key(text: str, start: int, end: int, body: str) -> Span:
    kind = "private key" + (COMMAND if _LOWER_WORD.search(body) else "")
    return Span(start, end, kind, start, end)


_ENCODED = re.compile(r"(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/_-]{12,}+={0,2}")
_PRINTABLE = re.compile(rb"[\t\n\r\x20-\x7e]*")


def encoded(twin: Shadow) -> Iterator[tuple[int, int, str]]:
    """Words that are base64 of plain text, as (start, end, that text), for a second look inside."""
    for match in _ENCODED.finditer(twin.text):
        word = match[0].rstrip("=").replace("-", "+").replace("_", "/")
        if len(word) % 4 == 1:
            word = word[:-1]
        first = _decode(word[:48])
        if first is None:
            continue
        plain = first if len(word) <= 48 else _decode(word)
        if plain is not None:
            yield match.start(), match.end(), plain


def _decode(word: str) -> str | None:
    try:
        plain = binascii.a2b_base64(word + "=" * (-len(word) % 4))
    except (binascii.Error, ValueError):
        return None
    return plain.decode("ascii") if _PRINTABLE.fullmatch(plain) else None

