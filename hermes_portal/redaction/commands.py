"""Secrets that only the command in front of them gives away: `mysql -pSECRET`, `sshpass -p`, `echo x | sudo -S`."""

import re
from collections.abc import Iterator

from .marks import OPAQUE
from .shadow import Shadow
from .values import Span, Work, is_reference, label, read_value

#: How far behind its command a flag is looked for; a stream holds this much back.
REACH = 240

_GLUED = re.compile(r"(?<=[ \t])-p(?=[^ \t\n=])")
_SMALL_P = re.compile(r"(?<=[ \t])-p(?:[ \t]{1,4}+|=|(?=[^ \t\n]))")
_SMALL_A = re.compile(r"(?<=[ \t])-a[ \t]{1,4}+")
_SMALL_W = re.compile(r"(?<=[ \t])-[wW](?:[ \t]{1,4}+|(?=[^ \t\n-]))")
_BIG_P = re.compile(r"(?<=[ \t])-P(?:[ \t]{1,4}+|(?=[^ \t\n]))")
_WORD_PW = re.compile(r"(?<=[ \t])-pw[ \t]{1,4}+")
_PERCENT = re.compile(r"(?<=[ \t])(?:-U|--user)[ \t=]{0,4}+[\"']?[^\s%:\"']{1,64}+%")
_PAIR = re.compile(r"(?<=[ \t])(?:-a|-A|--auth|-auth)[ \t=]{1,4}+[\"']?[^\s%:\"']{1,64}+:")
_PASS_WORD = re.compile(r"(?<=[ \t])-pass(?:in|out)?[ \t]{1,4}+[\"']?pass:|(?<=[ \t])-k[ \t]{1,4}+")
_SLASH_P = re.compile(r"(?<=[ \t])/(?:p|pass|password):", re.IGNORECASE)
_ENV = re.compile(r"(?<=[ \t])-(?:N|new-passphrase)[ \t]{1,4}+")

_COMMANDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (r"mysql\w*|maria\w*|mycli|7z[ar]?|rar|unrar", _GLUED),
    (r"sshpass|mongo\w*|rdesktop|useradd|usermod|pgcli|impacket-\w+|evil-winrm|kinit|ncrack", _SMALL_P),
    (
        r"(?:docker|podman|nerdctl|buildah|skopeo|helm|oc|az|npm|crane|oras|argocd|registry)[ \t]\w*[ \t]?login",
        _SMALL_P,
    ),
    (r"redis-cli|keydb-cli|valkey-cli", _SMALL_A),
    (r"ldap(?:search|add|modify|delete|passwd|whoami|compare)|htdigest", _SMALL_W),
    (r"sqlcmd|bcp|isql|tsql|ipmitool|unzip|zip|zipcloak", _BIG_P),
    (r"plink|pscp|psftp|putty", _WORD_PW),
    (r"smbclient|rpcclient|net|smbmap|winexe|wmic|nxc|crackmapexec", _PERCENT),
    (r"https?|xh|ab|java|jenkins-cli|siege", _PAIR),
    (r"openssl", _PASS_WORD),
    (r"xfreerdp\d?|wfreerdp|cmdkey|mstsc", _SLASH_P),
    (r"ssh-keygen", _ENV),
)
_FLAGGED = re.compile(r"[ \t](?:-[paAwWPUNk]|--?auth|--user|/p)")
_NAME = re.compile(
    "(?<![A-Za-z0-9_-])(?:"
    + "|".join(f"(?P<c{i}>{names})" for i, (names, _) in enumerate(_COMMANDS))
    + r")(?=[ \t])",
    re.ASCII,
)
_SEGMENT = re.compile(rf"[^\n;|&]{{0,{REACH}}}")
_HTPASSWD = re.compile(rf"htpasswd(?P<rest>[ \t][^\n;|&{OPAQUE}]{{0,{REACH}}}+)")
_PIPED = re.compile(
    r"(?<![\w-])(?:echo|printf)[ \t]{1,4}+(?:-[neE]{1,3}[ \t]{1,4}+)?(?:[\"']%s(?:\\n)?[\"'][ \t]{1,4}+)?(?P<value>[^\n|]{1,200}?)"
    r"[ \t]*+\|[ \t]{0,4}+[^\n|;&]{0,80}?(?:sudo[ \t][^\n|;&]{0,40}?(?:-\w{0,4}S|--stdin)|--?password-stdin|--passphrase-fd"
    r"|chpasswd|passwd\b|cryptsetup|kinit|--stdin\b)",
    re.ASCII,
)
_HERE_STRING = re.compile(r"-\w{0,4}S\b[^\n;|&]{0,80}?<<<[ \t]{0,4}+", re.ASCII)


def commands(twin: Shadow, work: Work) -> Iterator[Span]:
    """Passwords given to well-known commands by short flags or by a pipe."""
    text = twin.text
    if _FLAGGED.search(text):
        at = 0
        while name := _NAME.search(text, at):
            work.spend()
            segment = _SEGMENT.match(text, name.end())
            end = segment.end() if segment else name.end()
            index = int((name.lastgroup or "c0")[1:])
            yield from _flags(text, name.start(), name.end(), end, _COMMANDS[index][1], work)
            at = end if name.end() < end < name.end() + REACH else name.end()
    if "htpasswd" in text:
        yield from _htpasswd(text, work)
    if "|" in text and ("echo" in text or "printf" in text):
        for match in _PIPED.finditer(text):
            work.spend()
            value = match["value"].strip("\"' \t")
            if value and not is_reference(value) and OPAQUE not in value:
                start = match.start("value") + match["value"].index(value)
                yield Span(start, start + len(value), label("password", value), match.start(), match.end())
    if "<<<" in text:
        for match in _HERE_STRING.finditer(text):
            work.spend()
            yield from _value(text, match.start(), match.end())


def _flags(text: str, zone: int, at: int, end: int, flag: re.Pattern[str], work: Work) -> Iterator[Span]:
    for match in flag.finditer(text, at, end):
        work.spend()
        yield from _value(text, zone, match.end())


def _value(text: str, zone: int, at: int) -> Iterator[Span]:
    value = read_value(text, at)
    if value is None or text[value.start] == OPAQUE:
        return
    found = text[value.start : value.end]
    if found.startswith("-") or is_reference(found):
        return
    yield Span(
        value.start,
        value.end,
        label("password", found),
        zone,
        len(text) if value.open else value.closed_at + 1,
    )


def _htpasswd(text: str, work: Work) -> Iterator[Span]:
    for match in _HTPASSWD.finditer(text):
        work.spend()
        if text.startswith(OPAQUE, match.end()):  # masked already
            continue
        words = [(m.start(), m.end()) for m in re.finditer(r"\S+", match["rest"])]
        batch = any(re.match(r"-[A-Za-z]*b", match["rest"][a:b]) for a, b in words)
        if batch and len(words) >= 3:
            start = match.start("rest") + words[-1][0]
            yield from _value(text, match.start(), start)
