"""Secrets of web requests: headers, cookies, credentials and signatures in addresses, user:password flags."""

import base64
import binascii
import re
from collections.abc import Iterator

from .marks import OPAQUE
from .shadow import Shadow
from .values import Span, Work, close_quoted, is_reference, label, read_value

_SCHEMES = (
    "bearer|basic|token|digest|negotiate|ntlm|apikey|api-key|key|jwt|bot|aws4-hmac-sha256|hawk|hmac|oauth|dpop|ssws"
    "|genie[kK]ey|splunk|sharedkey(?:lite)?|sharedaccesssignature|privatetoken"
)
_AUTHORIZATION = re.compile(
    rf"""authorization(?P<close>[\\"'`\])]{{0,9}}+)[ \t]{{0,16}}+(?:=>|[:=,]|%3a)[ \t]{{0,16}}+(?P<open>\\{{0,9}}+["'`]?)
        (?:(?:f|b|r)(?=["']))?(?P<scheme>(?:{_SCHEMES})(?:[ \t]{{1,8}}+|%20|\+(?=\S)))?""",
    re.VERBOSE | re.ASCII,
)
_PARAMETERS = re.compile(
    rf"""(?:[\w-]{{1,40}}+=(?:\\{{0,9}}+"[^"\\\n{OPAQUE}]*+\\{{0,9}}+"|[^\s,"'{OPAQUE}]++),?[ \t]{{0,8}}+)+""",
    re.VERBOSE | re.ASCII,
)
_CREDENTIAL = re.compile(rf"[^\s\"'`\\,;<>&|(){{}}\[\]{OPAQUE}]++")
_UNTIL_QUOTE = re.compile(r"[^\s\"'\\]++")
_BEARER = re.compile(
    rf"bearer(?:[ \t]{{1,4}}+|[:=%][ \t]?(?:20)?)(?P<value>[a-z0-9._~+/=-]{{8,}}+)(?!{OPAQUE})", re.ASCII
)
_BASIC = re.compile(r"basic(?:[ \t]{1,4}+|%20)(?P<value>[a-z0-9+/_-]{8,}+={0,2})", re.ASCII)


def headers(twin: Shadow, work: Work) -> Iterator[Span]:
    """Authorization headers in any notation, and bearer or basic credentials without one."""
    text, low = twin.text, twin.low
    if "authorization" in low:
        for match in _AUTHORIZATION.finditer(low):
            work.spend()
            yield from _authorization(text, match)
    if "bearer" in low:
        for match in _BEARER.finditer(low):
            work.spend()
            value = match["value"]
            if len(value) >= 24 or any(c.isdigit() for c in value):
                yield Span(*match.span("value"), "bearer token", match.start(), match.end())
    if "basic" in low:
        for match in _BASIC.finditer(low):
            work.spend()
            if _is_pair(text[match.start("value") : match.end("value")]):
                yield Span(*match.span("value"), "basic credentials", match.start(), match.end())


def _authorization(text: str, match: re.Match[str]) -> Iterator[Span]:
    scheme = (match["scheme"] or "").strip().rstrip("+").removesuffix("%20")
    kind = {"bearer": "bearer token", "basic": "basic credentials"}.get(scheme, "authorization")
    at = match.end()
    parameters = _PARAMETERS.match(text, at)
    if parameters and scheme not in ("bearer", "basic"):
        end = len(parameters[0].rstrip(" \t,")) + at
        yield Span(at, end, label(kind, text[at:end]), match.start(), parameters.end() + 64)
        return
    first = _CREDENTIAL.match(text, at)
    whole = _UNTIL_QUOTE.match(text, at)
    if not first or (whole and is_reference(whole[0])):
        return
    end = first.end()
    if not scheme:  # a scheme of somebody's own: "Authorization: Custom abc123"
        second = re.compile(r"[ \t]{1,4}+(?=[^\s]{0,256}[0-9])[A-Za-z0-9._~+/=-]{8,}+").match(text, end)
        end = second.end() if second else end
    if match["open"]:
        depth = len(match["open"]) - 1
        if match["open"][-1] in "\"'`":
            closed = close_quoted(text, end, match["open"][-1], depth)
            rest = text[end:closed]
            if rest and not re.match(r"[\s,;&|)<>]|\$", rest):
                end = closed
    yield Span(at, end, label(kind, text[at:end]), match.start(), end + 64)


def _is_pair(encoded: str) -> bool:
    """Whether this is the base64 of "user:password"."""
    try:
        plain = base64.b64decode(encoded.replace("-", "+").replace("_", "/") + "=" * (-len(encoded) % 4))
    except (binascii.Error, ValueError):
        return False
    return b":" in plain and plain.isascii() and all(byte >= 0x20 for byte in plain)


_COOKIE = re.compile(
    r"cookie(?P<close>[\\\"'`\]]{0,9}+)(?:[ \t]{0,8}+(?:=>|[:=,])[ \t]{0,8}+|[ \t]{1,8}+)(?P<open>\\{0,9}+[\"'`]?)",
    re.ASCII,
)
_CURL_COOKIE = re.compile(r"-(?<![\w-]-)b[ \t]{0,4}+(?P<open>\\{0,9}+[\"']?)(?=[\w.-]{1,64}+=)", re.ASCII)
_PAIR = re.compile(
    rf"(?P<name>[\w!#$%*+.^|~-]{{1,64}}+)=(?P<value>\\?\"[^\"\\\n{OPAQUE}]*+\\?\"|[^\s;\"'\\{OPAQUE}]*+)(?P<next>;[ \t]{{0,4}}+)?",
    re.ASCII,
)
_ATTRIBUTES = frozenset(
    {"path", "domain", "expires", "max-age", "samesite", "priority", "secure", "httponly", "version"}
)


def cookies(twin: Shadow, work: Work) -> Iterator[Span]:
    """Values of cookies; their names and attributes stay."""
    text, low = twin.text, twin.low
    if "cookie" in low:
        for match in _COOKIE.finditer(low):
            work.spend()
            yield from _cookie_pairs(text, match.start(), match.end(), work, alone=":" in match[0])
    if "-b" in text:
        for match in _CURL_COOKIE.finditer(text):
            work.spend()
            if "curl" in low[max(0, match.start() - 200) : match.start()]:
                yield from _cookie_pairs(text, match.start() - 200, match.end(), work, alone=False)


def _cookie_pairs(text: str, zone: int, at: int, work: Work, *, alone: bool) -> Iterator[Span]:
    found: list[tuple[int, int]] = []
    start = at
    while pair := _PAIR.match(text, at):
        work.spend()
        if pair["value"] and pair["name"].lower() not in _ATTRIBUTES and not is_reference(pair["value"]):
            found.append(pair.span("value"))
        at = pair.end()
        if not pair["next"]:
            break
        while flag := re.compile(r"(?:secure|httponly|partitioned)(?:;[ \t]{0,4}+)?", re.IGNORECASE).match(
            text, at
        ):
            at = flag.end()
    if at == start and alone:
        value = read_value(text, at)
        if value and value.end - value.start >= 8 and any(c.isdigit() for c in text[value.start : value.end]):
            found.append((value.start, value.end))
            at = value.closed_at
    for begin, end in found:
        yield Span(begin, end, label("cookie", text[begin:end]), zone, at + 128)


_AUTHORITY = re.compile(
    r"(?::(?:\\{0,9}+/){2}|%3[Aa]%2[Ff]%2[Ff])(?P<authority>[^\s/?#\"'<>`\\" + OPAQUE + r"]*+)", re.ASCII
)
_WITH_SLASH = re.compile(
    rf"(?P<user>[^\s/?#@:\"'<>{OPAQUE}]*+):(?![0-9]{{1,5}}(?:[/?#]|\Z))(?P<password>(?:[^\s@\"'<>:{OPAQUE}]|:(?!//))*+)@(?=[\w\[])",
    re.ASCII,
)
_HOSTED = re.compile(
    rf"(?<=\w):(?P<password>[^\s:@/\"'<>`{OPAQUE}]{{3,128}}+)@(?!sha[0-9])(?=(?:tcp|unix)\(|[\w.-]{{1,128}}+(?::[0-9]{{2,5}}|/))",
    re.ASCII,
)
_NOT_USERS = (
    "mailto",
    "sip",
    "sips",
    "email",
    "e-mail",
    "from",
    "cc",
    "bcc",
    "reply-to",
    "acct",
    "xmpp",
    "ssh",
    "git",
)


def addresses(twin: Shadow, work: Work) -> Iterator[Span]:
    """Passwords, and users that are secrets, in front of the host of an address."""
    text = twin.text
    if "//" in text or "\\/" in text or "%2" in text:
        for match in _AUTHORITY.finditer(text):
            work.spend()
            yield from _userinfo(text, match)
    if "@" in text:
        for match in _HOSTED.finditer(text):
            work.spend()
            start = _name_before(text, match.start())
            if twin.low[start : match.start()] not in _NOT_USERS and not is_reference(match["password"]):
                yield _password(text, *match.span("password"), start, match.end())


def _name_before(text: str, at: int) -> int:
    """Where the scheme or user starts that ends at `at`."""
    start = at
    while start > 0 and at - start < 64 and (text[start - 1].isalnum() or text[start - 1] in "+.-_%"):
        start -= 1
    return start


def _password(text: str, start: int, end: int, zone_start: int, zone_end: int) -> Span:
    return Span(start, end, label("url password", text[start:end]), zone_start, zone_end)


def _userinfo(text: str, match: re.Match[str]) -> Iterator[Span]:
    authority, at = match["authority"], match.start("authority")
    zone = _name_before(text, match.start())
    encoded = match[0].startswith("%")
    last = max(authority.rfind("%40"), -1) if encoded else authority.rfind("@")
    if last < 0:
        slashed = _WITH_SLASH.match(text, at)
        if slashed and slashed["password"]:
            yield _password(text, *slashed.span("password"), zone, slashed.end())
        elif match.end() == len(text) or text.startswith(("...", "…"), match.end()):
            cut = re.fullmatch(r"[^:\[\]@]+:(?![0-9]{1,5}\.{0,3}\Z)(?P<password>[^:]+)", authority)
            if cut and not is_reference(cut["password"]):  # cut off before the "@", and no port
                yield _password(text, at + cut.start("password"), match.end(), zone, match.end())
        return
    userinfo = authority[:last]
    user, colon, password = userinfo.partition(
        "%3A" if "%3A" in userinfo else "%3a" if "%3a" in userinfo else ":"
    )
    start = at + len(user) + len(colon)
    if colon and password and not is_reference(password):
        yield _password(text, start, at + last, zone, match.end())
    public = not password or password.lower() in ("x-oauth-basic", "x-token-auth")
    if user and _user_is_secret(user, public=public, alone=not colon):
        yield Span(at, at + len(user), label("url user", user), zone, match.end())


def _user_is_secret(user: str, *, public: bool, alone: bool) -> bool:
    if is_reference(user):
        return False
    digits = any(c.isdigit() for c in user)
    return (public and not alone) or (len(user) >= 16 and digits and "." not in user)


_QUERY = re.compile(
    r"[?&;](?:amp;)?(?P<name>key|sig|signature|auth|code|hmac|jwt|sid|ticket|assertion|client_assertion|samlresponse"
    r"|x-amz-signature|x-amz-credential|x-amz-security-token|x-goog-signature|x-goog-credential|se_sig|hash)"
    rf"=(?P<value>[^\s&#\"'<>\\`{OPAQUE}]{{8,}}+)",
    re.ASCII,
)


def queries(twin: Shadow, work: Work) -> Iterator[Span]:
    """Signatures and keys in query strings whose names say too little to be looked for elsewhere."""
    low = twin.low
    if "=" not in low or not ("?" in low or "&" in low):
        return
    for match in _QUERY.finditer(low):
        work.spend()
        value = match["value"]
        if any(c.isdigit() for c in value) and not (match["name"] == "hash" or is_reference(value)):
            yield Span(*match.span("value"), "url token", match.start(), match.end())


_USER_FLAG = re.compile(
    r"""-(?<![\w-]-)(?:[uU](?=[ \t"'=A-Za-z\\])|-(?:proxy-)?user(?=[ \t=])|-basic(?=[ \t]))[ \t=]{0,8}+
        (?P<open>\\{0,9}+["']?)(?P<user>[^\s:"'\\=+/$-][^\s:"'\\$]{0,127}+|\$\{?\w{1,64}+\}?|)(?P<colon>:|%(?=\S))""",
    re.VERBOSE | re.ASCII,
)
_WEB_CLIENTS = ("curl", "wget", "http", "xh ")


def user_flags(twin: Shadow, work: Work) -> Iterator[Span]:
    """`-u user:password`. A user alone stays, and so do numeric ids and paths outside of web clients."""
    text, low = twin.text, twin.low
    if "-u" not in low and "-basic" not in low:
        return
    for match in _USER_FLAG.finditer(text):
        work.spend()
        opening, at = match["open"], match.end()
        if opening:
            end = close_quoted(text, at, opening[-1], len(opening) - 1) if opening[-1] in "\"'" else at
        else:
            value = None if text[at : at + 1].isspace() else read_value(text, at)
            end = value.end if value else at
        found = text[at:end]
        if not found or OPAQUE in found or is_reference(found):
            continue
        web = any(name in low[max(0, match.start() - 200) : match.start()] for name in _WEB_CLIENTS)
        if not web and _is_no_password(match, found):
            continue
        yield Span(
            at, end, label("password", found), max(0, match.start() - 200) if web else match.start(), end + 1
        )


def _is_no_password(match: re.Match[str], found: str) -> bool:
    if match["colon"] == "%" and match[0][1] != "U":
        return True
    return found.startswith(("/", "./", "~")) or (match["user"] + found).isdigit()
