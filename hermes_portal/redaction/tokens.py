"""Secrets that are known by their own shape: prefixed tokens, JWT, private keys, password hashes, base64 of these."""

import binascii
import re
from collections.abc import Iterator

from .marks import OPAQUE
from .shadow import Shadow
from .values import COMMAND, Span, Work

_ANY = "[A-Za-z0-9_-]"
_ALNUM = "[A-Za-z0-9]"
#: (kind, how it starts, what follows). Lengths are short on purpose: a token cut off by a preview limit is
#: still most of a token.
_PREFIXED: tuple[tuple[str, str, str], ...] = (
    ("aws access key", "AKIA ASIA AROA AIDA AGPA ANPA ANVA AIPA ABIA ACCA A3T", "[A-Z0-9]{8,}+"),
    ("github token", "ghp_ gho_ ghu_ ghs_ ghr_", f"{_ALNUM}{{8,}}+"),
    ("github token", "github_pat_", "[A-Za-z0-9_]{8,}+"),
    (
        "gitlab token",
        "glpat- gldt- glrt- glrtr- glptt- glsoat- glcbt- glft- glimt- glagent- gloas- glffct- GR1348941",
        "[A-Za-z0-9_.-]{8,}+",
    ),
    ("slack token", "xoxa- xoxb- xoxc- xoxe- xoxe. xoxo- xoxp- xoxr- xoxs- xapp-", "[A-Za-z0-9.-]{8,}+"),
    ("stripe key", "sk_live_ sk_test_ rk_live_ rk_test_ pk_live_ pk_test_", f"{_ALNUM}{{6,}}+"),
    ("stripe key", "whsec_", "[A-Za-z0-9+/=]{8,}+"),
    ("anthropic key", "sk-ant-", f"{_ANY}{{6,}}+"),
    ("openai key", "sk-proj- sk-svcacct- sk-admin- sk-or-", f"{_ANY}{{6,}}+"),
    # not a name in words, such as sk-learn-contrib
    ("openai key", "sk-", rf"(?![a-z]{{1,20}}(?:-[a-z]{{1,20}}){{1,9}}+(?![\w-])){_ANY}{{8,}}+"),
    ("google key", "AIza GOCSPX-", f"{_ANY}{{8,}}+"),
    ("google key", "ya29.", "[A-Za-z0-9_.-]{8,}+"),
    ("npm token", "npm_", f"{_ALNUM}{{10,}}+"),
    ("pypi token", "pypi-", f"{_ANY}{{16,}}+"),
    ("sendgrid key", "SG.", rf"{_ANY}{{8,}}+(?:\.{_ANY}*+)?"),
    ("twilio key", "SK", "[0-9a-f]{24,32}+(?![A-Za-z0-9])"),
    ("vault token", "hvs. hvb. hvr.", f"{_ANY}{{8,}}+"),
    ("hugging face token", "hf_ api_org_", f"{_ALNUM}{{10,}}+"),
    ("cloud token", "dop_v1_ doo_v1_ dor_v1_", "[a-f0-9]{8,}+"),
    ("cloud token", "dapi", "[a-f0-9]{16,}+"),
    ("cloud token", "tskey- fo1_ FlyV1", f"{_ANY}{{8,}}+"),
    ("shop token", "shpat_ shpca_ shppa_ shpss_", "[A-Fa-f0-9]{8,}+"),
    ("shop token", "sq0atp- sq0csp- sq0idp-", f"{_ANY}{{8,}}+"),
    ("shop token", "EAAA", f"{_ANY}{{40,}}+"),
    ("mail key", "key-", "[0-9a-f]{16,32}+"),
    ("mail key", "xkeysib-", "[a-f0-9-]{16,}+"),
    ("mail key", "re_", f"{_ALNUM}{{8}}_{_ALNUM}{{8,}}+"),
    ("registry token", "dckr_pat_ dckr_oat_", f"{_ANY}{{8,}}+"),
    ("registry token", "rubygems_", "[a-f0-9]{8,}+"),
    ("registry token", "cio", f"{_ALNUM}{{32}}(?!{_ALNUM})"),
    ("registry token", "oy2", "[a-z0-9]{43}"),
    ("monitoring key", "glsa_ glc_ sntrys_ sntryu_", "[A-Za-z0-9_+/=-]{8,}+"),
    ("monitoring key", "NRAK-", "[A-Z0-9]{8,}+"),
    ("monitoring key", "phc_", f"{_ALNUM}{{16,}}+"),
    (
        "service token",
        "lin_api_ ntn_ figd_ PMAK- dp.pt. dp.st. dp.ct. dp.sa. sbp_ pscale_tkn_ pscale_pw_ pscale_oauth_ r8_ gsk_ xai- pplx- "
        "ATATT3 ATCTT3 HRKU- pat-na1- nfp_ vercel_ CFPAT- EZAK EZTK tvly- csk- fw_ nvapi- AGE-SECRET-KEY-1 sgp_ rpa_ "
        "lsv2_pt_ lsv2_sk_",
        "[A-Za-z0-9_.+/=-]{12,}+",
    ),
)
_BY_HEAD = {
    head: (kind, re.compile(re.escape(head) + rest))
    for kind, heads, rest in _PREFIXED
    for head in heads.split()
}


def _tree(heads: set[str]) -> str:
    """A pattern for any of these texts, the longest first, that looks at no character twice."""
    firsts = sorted({head[0] for head in heads if head})
    branches = [re.escape(first) + _tree({h[1:] for h in heads if h[:1] == first}) for first in firsts]
    if not branches:
        return ""
    pattern = branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
    return f"(?:{pattern})?" if "" in heads else pattern


_HEAD = re.compile(_tree(set(_BY_HEAD)))
_STAGE = re.compile(r"_(?:live|test|prod|dev|staging|stage|sandbox|secret|sk|pk|pat|key|api|token)_")
_STAGED = re.compile(rf"(?=[A-Za-z]*+[0-9]|{_ALNUM}{{24}}){_ANY}{{8,}}+")
_OWNER = re.compile(r"[a-z]{1,16}(?=\Z)")
_TAIL = re.compile(r"[A-Za-z0-9_+/=-]*+")
_DOTTED = re.compile(r"[A-Za-z0-9_\-.]*+")
_JWT_MINIMUM = 16
_FORTY = 40


def words(twin: Shadow, work: Work) -> Iterator[Span]:
    """Tokens with a known prefix, JWT, and AWS secret keys standing alone: all are long words."""
    text = twin.text
    staged, encoded_json = _STAGE.search(text) is not None, "eyJ" in text
    for start, end in twin.words:
        yield from _prefixed(text, start, end, work)
        if staged:
            yield from _staged(text, start, end, work)
        if encoded_json:
            yield from _jwt(text, text.find("eyJ", start, end), start, end, work)
        if end - start >= _FORTY:
            yield from _aws_secrets(text, start, end, work)


def _prefixed(text: str, start: int, end: int, work: Work) -> Iterator[Span]:
    past = start
    for head in _HEAD.finditer(text, start, end):
        at = head.start()
        if at < past or (at > 0 and text[at - 1].isalnum() and not _encoded_blank(text, at)):
            continue
        kind, shape = _BY_HEAD[head[0]]
        match = shape.match(text, at)
        if match:
            work.spend()
            past = _TAIL.match(text, match.end()).end()  # type: ignore[union-attr]  # matches nothing too
            yield Span(at, past, kind, at, past)


def _encoded_blank(text: str, at: int) -> bool:
    """Whether what stands before is an escape (\\n, %20, %3D) and no part of a word."""
    return text[at - 2 : at - 1] == "\\" or text[at - 3 : at - 2] == "%"


def _staged(text: str, start: int, end: int, work: Work) -> Iterator[Span]:
    """`vendor_live_abc123`: what most vendors' keys look like, whoever they are."""
    past = start
    for stage in _STAGE.finditer(text, start, end):
        rest = _STAGED.match(text, stage.end()) if stage.start() >= past else None
        owner = _OWNER.search(text, max(past, stage.start() - 17), stage.start()) if rest else None
        if rest and owner:
            work.spend()
            past = rest.end()
            yield Span(owner.start(), past, "api key", owner.start(), past)


def _jwt(text: str, at: int, start: int, end: int, work: Work) -> Iterator[Span]:
    while at >= 0:
        work.spend()
        stop = _DOTTED.match(text, at, end).end()  # type: ignore[union-attr]  # matches nothing too
        bounded = at == start or not text[at - 1].isalnum() or _encoded_blank(text, at)
        if not bounded and ".eyJ" not in text[at:stop]:
            inner = re.compile(r"[_-]eyJ").search(text, at, stop)
            at, bounded = (inner.start() + 1, True) if inner else (at, False)
        if stop - at >= _JWT_MINIMUM and (bounded or ".eyJ" in text[at:stop]):
            yield Span(at, stop, "jwt", at, stop)
        at = text.find("eyJ", stop, end)


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
_DJANGO_HASH = re.compile(
    r"(?:pbkdf2_sha(?:1|256)|argon2|bcrypt_sha256|scrypt)\$[^\s:\"'`<>|;&]{16,}+", re.ASCII
)
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


def _plain(pattern: re.Pattern[str], text: str, kind: str, work: Work) -> Iterator[Span]:
    for match in pattern.finditer(text):
        work.spend()
        yield Span(match.start(), match.end(), kind, match.start(), match.end())


_AWS_SECRET = re.compile(r"[A-Za-z0-9+/]{40,}+")
_PATH_PART = re.compile(r"[A-Z]?[a-z]{2,}[0-9]*|[A-Z]{2,}|[0-9]+|[A-Z]?[a-z]+(?:[A-Z][a-z]+)*|", re.ASCII)


def _aws_secrets(text: str, start: int, end: int, work: Work) -> Iterator[Span]:
    for match in _AWS_SECRET.finditer(text, start, end):
        found = match[0]
        around = text[match.start() - 1 : match.start()] + text[match.end() : match.end() + 1]
        if len(found) != _FORTY or any(c in "=_.~$-" for c in around.removesuffix(".")):
            continue
        work.spend()
        if not re.search("[a-z]", found) or not re.search("[A-Z]", found) or not re.search("[0-9+]", found):
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
_BARE_KEYS = (
    ("b3BlbnNzaC1rZXktdjE", re.compile(r"b3BlbnNzaC1rZXktdjE[A-Za-z0-9+/=]{8,}+")),
    ("MII", re.compile(r"MII[A-Z][A-Za-z0-9+/]{1,2}IBA(?:AK[BC]|DAN)[A-Za-z0-9+/=]{8,}+")),
    ("MHcCAQEE", re.compile(r"MHcCAQEE[A-Za-z0-9+/=]{8,}+")),
    ("AgEAM", re.compile(r"MIG[A-Z]AgEAM[A-Za-z0-9+/=]{8,}+")),
    ("MC4CAQAwBQYDK2V", re.compile(r"MC4CAQAwBQYDK2V[A-Za-z0-9+/=]{8,}+")),
)
_PUTTY = re.compile(r"Private-Lines:[ ][0-9]{1,4}+")
_END = re.compile(r"-{4,5}[ ]?END [A-Z0-9 ]{0,40}?PRIVATE KEY(?: BLOCK)?-{0,5}+")
_BACK_SEPARATOR = r"(?:\s|[nrt]\\++|[\"',\\])"
_BACKWARDS = re.compile(
    rf"(?:{_BACK_SEPARATOR}*+[A-Za-z0-9+/=]{{1,15}}+(?={_BACK_SEPARATOR}))?(?:{_BACK_SEPARATOR}*+[A-Za-z0-9+/=]{{16,}}+)++"
)
_LONG_LINE = re.compile(r"(?=[a-f0-9+/=]*+[A-Zg-z])[A-Za-z0-9+/=]{40}")
_LOWER_WORD = re.compile(r"(?<![A-Za-z0-9+/=\\])[a-z][a-z/]+(?![A-Za-z0-9+/=:])")


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
            start = match.start() - (1 if text.startswith("- ", match.start() - 2) else 0)
            while start > last and match.start() - start < 6 and text[start - 1] == "-":
                start -= 1
            last = max(last, body.end() if body else match.end())
            if body and body.end() > match.end():
                inner = text[match.end() : body.start("end") if body["end"] else body.end()]
                yield _key(start, body.end(), inner, whole=body["end"] is not None)
        yield from _keys_cut_at_start(text, work)
    for literal, pattern in _BARE_KEYS:
        if literal in text:
            yield from _key_bodies(text, pattern, work)
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
            yield _key(start, at, text[start:at], whole=bool(body and body["end"]))


def _keys_cut_at_start(text: str, work: Work) -> Iterator[Span]:
    last = 0
    for match in _END.finditer(text):
        work.spend()
        before = _BACKWARDS.match(text[last : match.start()][::-1])
        length = len(before[0]) if before else 0
        start = match.start() - length
        if length and _LONG_LINE.search(text, start, match.start()):
            yield _key(start, match.end(), text[start : match.start()], whole=True)
        last = match.end()


def _key(start: int, end: int, body: str, *, whole: bool) -> Span:
    kind = "private key" + (COMMAND if _LOWER_WORD.search(body) else "")
    return Span(start, end, kind, start, end if whole else end + 96)


_ENCODED = re.compile(r"[A-Za-z0-9+/_-]{16,}+={0,2}")
_PRINTABLE = re.compile(rb"[\t\n\r\x20-\x7e]*")
_ENCODED_MINIMUM = 16


def encoded(twin: Shadow) -> Iterator[tuple[int, int, str]]:
    """Words that are base64 of plain text, as (start, end, that text), for a second look inside."""
    for start, end in twin.words:
        for match in _ENCODED.finditer(twin.text, start, end) if end - start >= _ENCODED_MINIMUM else ():
            word = match[0].rstrip("=").replace("-", "+").replace("_", "/")
            if len(word) % 4 == 1:
                word = word[:-1]
            plain = _decode(word[:48])
            if plain is not None and len(word) > 48:
                plain = _decode(word)
            if plain is not None:
                yield match.start(), match.end(), plain


def _decode(word: str) -> str | None:
    try:
        plain = binascii.a2b_base64(word + "=" * (-len(word) % 4))
    except (binascii.Error, ValueError):
        return None
    return plain.decode("ascii") if _PRINTABLE.fullmatch(plain) else None
