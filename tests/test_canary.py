"""Made-up secrets are driven through the real parts, and then looked for in everything that is kept or shown.

Places: run input, instructions, history, reasons, commands, tool previews, deltas cut at every position, errors,
output, replies of the provider. Then: the database, the broker, the cache, files under the data directory, the log,
every page for every role, and the exported evidence. A piece of eight characters of a secret counts as found.
"""

import base64
import io
import json
import logging
import random
import re
import string
import urllib.parse
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import redis
from django.conf import settings
from django.db import connection
from django.test import Client
from django.urls import reverse

from approvals import execution, export, services
from approvals.evidence import OPERATOR
from approvals.models import Action, Approval, Execution
from hermes_portal.logs import Redacting
from runs.models import Prompt, Run
from tests import factories, fake_hermes
from tests.factories import Cast
from tests.fake_hermes import FakeHermes
from tests.runs.streams import Told, fresh, hub, prompt_of, reads, received, until

pytestmark = pytest.mark.django_db(transaction=True)
PIECE = 8  # characters of a secret that make a find
OWN = "Zq81mQ0vTt7Lw93bKx2RkP45"  # nothing in it says that it is a secret
WORD = re.compile(r"[A-Za-z0-9+/=_-]{8,}")
HEX = re.compile(r"(?:[0-9a-f]{2}){16,}")
FULL_WIDTH = re.compile("[\uff01-\uff5e]")
LETTERS = string.ascii_letters + string.digits


@dataclass
class Canaries:
    """Secrets of many kinds, each different and each with the place where it was planted."""

    numbers: random.Random = field(default_factory=lambda: random.Random(20261201))
    planted: dict[str, str] = field(default_factory=dict)
    _pieces: dict[str, str] = field(default_factory=dict)
    _pieces_of: dict[str, str] = field(default_factory=dict)

    def fresh(self, place: str, size: int = 28, alphabet: str = LETTERS) -> str:
        secret = "".join(self.numbers.choice(alphabet) for _ in range(size - 2)) + "7Q"
        self.planted[secret] = place
        return secret

    def texts(self, place: str) -> list[str]:
        """One text of each kind, as it would turn up in a command, a preview or an error."""

        def new(kind: str, size: int = 28, alphabet: str = LETTERS) -> str:
            return self.fresh(f"{kind} in {place}", size, alphabet)

        basic = base64.b64encode(f"admin:{new('basic')}".encode()).decode()
        self.planted[basic[12:]] = f"basic, encoded, in {place}"
        pem = "\n".join(new("private key", 64) for _ in range(4))
        jwt = f"eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.{new('jwt', 43)}"
        return [
            f"use https://svc:{new('url')}@db.example/",
            f"curl -u admin:{new('user flag')} https://x.example",
            f"Authorization: Bearer {new('bearer')}",
            f"Authorization: Basic {basic}",
            f"the password is {new('password')}",
            f"export DB_PASSWORD={new('assignment')}; make",
            json.dumps(json.dumps({"api_key": f"sk-{new('json in a string', 40)}"})),
            f"sk-proj-{new('sk', 40)}",
            f"ghp_{new('github', 36)}",
            f"xoxb-123456789012-123456789012-{new('slack', 24)}",
            f"AWS_SECRET_ACCESS_KEY={new('aws', 40)}",
            f"GET https://x.example/a?access_token={new('query')}&b=1",
            f"Cookie: sid={new('cookie')}; theme=dark",
            f"-----BEGIN PRIVATE KEY-----\n{pem}\n-----END PRIVATE KEY-----",
            jwt,
            *self.own(place),
        ]

    def own(self, place: str) -> list[str]:
        """The endpoint's own token as a hostile provider might echo it."""
        encoded = base64.b64encode(OWN.encode()).decode()
        self.planted[OWN] = f"own token, somewhere like {place}"
        self.planted[encoded[:32]] = f"own token in base64, somewhere like {place}"
        return [
            f"your key is {OWN} indeed",
            f"echo {encoded} | base64 -d",
            f"x={urllib.parse.quote(OWN, safe='')}",
            f"t={''.join(f'%{ord(letter):02X}' for letter in OWN)}",
            "z=" + "\u200b".join(OWN),
            "w=" + "".join(chr(ord(letter) + 0xFEE0) if "!" <= letter <= "~" else letter for letter in OWN),
            f"hex {OWN.encode().hex()} end",
        ]

    def all_in(self, place: str) -> str:
        return " \n".join(self.texts(place))

    def pieces(self) -> dict[str, str]:
        """Each piece of each secret, and where that was planted."""
        if len(self._pieces_of) != len(self.planted):
            self._pieces_of = dict(self.planted)
            self._pieces = {
                secret[start : start + PIECE]: place
                for secret, place in self.planted.items()
                for start in range(len(secret) - PIECE + 1)
            }
        return self._pieces

    def found_in(self, data: bytes) -> list[str]:
        """Where what is readable in these bytes was planted. Only runs of characters that secrets consist of matter."""
        pieces = self.pieces()
        plain = data.decode("utf-8", "replace")
        folded = FULL_WIDTH.sub(lambda wide: chr(ord(wide[0]) - 0xFEE0), plain).replace("\u200b", "")
        unquoted = urllib.parse.unquote(plain) if "%" in plain else ""
        unhexed = " ".join(bytes.fromhex(digits).decode("latin-1") for digits in HEX.findall(plain))
        words = {word for view in (plain, folded, unquoted, unhexed) for word in WORD.findall(view)}
        return sorted(
            {
                place
                for word in words
                for start in range(len(word) - PIECE + 1)
                if (place := pieces.get(word[start : start + PIECE]))
            }
        )


# --- where to look


def rows_of_the_database() -> Iterator[tuple[str, bytes]]:
    """Every value of every table; on SQLite the bytes of the file and its log as well, freed pages included."""
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(table)}")  # noqa: S608 - a name of ours
            values = [value for row in cursor.fetchall() for value in row]
            yield f"table {table}", b"\n".join(map(as_bytes, values))
    if connection.vendor == "sqlite":
        name = str(connection.settings_dict["NAME"])
        for path in (Path(name), Path(f"{name}-wal")):
            if path.exists():
                yield path.name, path.read_bytes()


def as_bytes(value: object) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return (value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)).encode()


def files_of_the_portal() -> Iterator[tuple[str, bytes]]:
    """Everything below the data directory but its keys: cache, queue, anchors. Bodies of messages are decoded."""
    for path in sorted(Path(settings.DATA_DIR).rglob("*")):
        if path.is_file() and "keys" not in path.parts and "static" not in path.parts:
            yield str(path.relative_to(settings.DATA_DIR)), path.read_bytes() + bodies(path.read_bytes())


def keys_of_redis() -> Iterator[tuple[str, bytes]]:
    """Everything that Redis holds, where there is one: the broker's and the cache's database."""
    for url in {settings.CELERY_BROKER_URL, settings.CACHES["default"]["LOCATION"]}:
        if not str(url).startswith("redis:"):
            continue
        with redis.Redis.from_url(str(url)) as link:
            for key in link.scan_iter():
                kind = link.type(key)
                value = {
                    b"string": lambda key=key: [link.get(key)],
                    b"list": lambda key=key: link.lrange(key, 0, -1),
                    b"hash": lambda key=key: [item for pair in link.hgetall(key).items() for item in pair],
                    b"set": lambda key=key: list(link.smembers(key)),
                    b"zset": lambda key=key: link.zrange(key, 0, -1),
                }[kind]()
                data = b"\n".join(value)
                yield f"redis {key!r}", key + data + bodies(data)


def bodies(data: bytes) -> bytes:
    """The decoded bodies of messages."""
    found = re.findall(rb'"body":\s*"([A-Za-z0-9+/=]+)"', data)
    return b"\n".join(base64.b64decode(body) for body in found)


def pages(desk: Cast) -> Iterator[tuple[str, bytes]]:
    """Every page that can be reached by links, for each role; and the news that an open page fetches."""
    superuser = factories.user("root", superuser=True)
    for person in (desk.requester, desk.reviewer, desk.auditor, desk.admin, superuser):
        client = Client()
        client.force_login(person)
        for path, body in crawl(client, ["/", "/runs/", "/evidence/", "/requests/", "/admin/"]):
            yield f"{path} as {person}", body


def crawl(client: Client, start: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    waiting, seen = list(start), set()
    while waiting:
        path = waiting.pop()
        if path in seen or "?" in path or path.startswith(("/accounts/", "/static/")):
            continue
        seen.add(path)
        answer = client.get(path)
        body = b"".join(answer.streaming_content) if answer.streaming else answer.content  # type: ignore[attr-defined]
        yield path, body
        links = re.findall(r'(?:href|hx-get|action)="([^"#]*)"', body.decode(errors="replace"))
        waiting += [
            urllib.parse.urljoin(path, link.replace("&amp;", "&")) for link in links if "//" not in link
        ]
        if re.fullmatch(r"/runs/[0-9a-f-]{36}/", path):
            news = client.get(f"{path}?after=-1&v=x", headers={"HX-Request": "true"})
            yield f"{path} (news)", news.content


@contextmanager
def log() -> Iterator[io.StringIO]:
    """What the portal's own handlers write, as configured."""
    written = io.StringIO()
    handlers = [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.StreamHandler)
        and any(isinstance(one, Redacting) for one in handler.filters)
    ]
    assert handlers, "the console handler with the redacting filter is configured"
    before = [handler.setStream(written) for handler in handlers]
    try:
        yield written
    finally:
        for handler, stream in zip(handlers, before, strict=True):
            handler.setStream(stream)


# --- what happens


def start(desk: Cast, canaries: Canaries, place: str) -> Action:
    """A start whose every text is full of secrets."""
    body = {
        "model": "m",
        "input": [{"role": "user", "content": canaries.all_in(f"{place}: input")}],
        # a short text is shown as the fact of a rule, a long one only by its length
        "instructions": canaries.texts(f"{place}: instructions")[len(place)],
        "conversation_history": [{"role": "user", "content": canaries.all_in(f"{place}: history")}],
    }
    return services.request(
        user=desk.requester,
        endpoint=desk.endpoint,
        operation="run_start",
        raw={"body": body, "session_key": "support:canary"},
        reason=" ".join(canaries.texts(f"{place}: reason")[:5] + canaries.own(f"{place}: reason")[:2]),
        key=f"canary-{place.replace(' ', '-')}",
    ).action


def live_run(desk: Cast, hermes: FakeHermes, canaries: Canaries) -> None:
    """From the form to the end of a run, with the ledger, a hub and a socket."""
    action = start(desk, canaries, "run")
    with hub():
        execution.execute(action.pk)
        run = Run.objects.get(action=action)
        fake = hermes.run(run.provider_run_id)
        fake.session_id = canaries.all_in("session id")
        fake.wait_for_subscriber()
        fake.emit(
            {"event": "tool.started", "tool": canaries.all_in("tool"), "preview": canaries.all_in("preview")}
        )
        fake.emit({"event": "reasoning.available", "text": canaries.all_in("reasoning")})
        fake.emit({"event": canaries.own("kind")[0], "text": canaries.all_in("unknown event")})
        fake.emit({"event": "message.delta", "delta": canaries.all_in("delta")})
        fake.emit_raw(
            b'data: {"event": "message.delta", "delta": "' + canaries.own("frame")[0].encode() + b"\n\n"
        )
        fake.ask(
            canaries.all_in("command"),
            description=canaries.all_in("description"),
            pattern_key=canaries.all_in("pattern"),
            pattern_keys=[canaries.all_in("patterns")],
        )
        prompt = prompt_of(run)
        until(lambda: (fresh(run).read_through_at or prompt.received_at) > prompt.received_at)
        answer = vote(desk, prompt, canaries)
        hermes.script(
            "POST",
            r".*/approval",
            fake_hermes.provider_error(400, canaries.all_in("refusal")[:4000], canaries.fresh("code")),
        )
        execution.execute(answer.pk)
        assert Execution.objects.get(pk=answer.pk).status == Execution.Status.NOT_APPLIED
        fake.emit(
            {"event": "run.failed", "error": canaries.all_in("error"), "output": canaries.all_in("output")}
        )
        reads(run, Run.Status.FAILED)
        until(lambda: fresh(run).session_id)


def vote(desk: Cast, prompt: Prompt, canaries: Canaries) -> Action:
    card = Approval.objects.filter(subject=prompt.subject).latest("created_at")
    reason = " ".join(canaries.texts("reason of a decision")[:4] + canaries.own("reason of a decision")[:2])
    services.decide(
        approval=card, user=desk.reviewer, choice="once", reason=reason, seen=services.seen_digest(card)
    )
    card.refresh_from_db()
    assert card.action is not None
    return card.action


def cut_everywhere(desk: Cast, hermes: FakeHermes, canaries: Canaries) -> None:
    """Lines with a secret, in two events that are cut at each position, and one letter at a time."""
    told = Told(received(desk, hermes.run()))
    for position in range(2, 60, 3):
        lines = (
            f"password is {canaries.fresh('delta cut in two')} ok\n",
            f"curl -u admin:{canaries.fresh('delta cut in two')} https://x.example\n",
            f"Authorization: Bearer {canaries.fresh('delta cut in two')}\n",
            f"key sk-proj-{canaries.fresh('delta cut in two', 40)} end\n",
            f"and {OWN} so\n",
        )
        for line in lines:
            told.tell("message.delta", delta=line[:position])
            told.tell("message.delta", delta=line[position:])
    for letter in f"the password is {canaries.fresh('letter by letter')} ok, {OWN}\n":
        told.tell("message.delta", delta=letter)
    told.tell("run.completed", output="done")


def refused_starts(desk: Cast, hermes: FakeHermes, canaries: Canaries) -> None:
    """Providers that put secrets into what they refuse or fail with."""
    answers = (
        fake_hermes.provider_error(400, canaries.all_in("400")[:4000], canaries.fresh("code of 400")),
        fake_hermes.reply(500, body=canaries.all_in("500").encode(), content_type="text/plain"),
        fake_hermes.html(f"<h1>{canaries.all_in('html')}</h1>"),
        fake_hermes.reply(202, {"run_id": canaries.all_in("run id")}),
        fake_hermes.raw(b"HTTP/1.1 200 " + canaries.own("status line")[0].encode() + b"\r\n\r\n"),
        fake_hermes.redirect(f"http://x.example/?token={OWN}"),
    )
    for number, answer in enumerate(answers):
        action = start(desk, canaries, f"start {number}")
        hermes.script("POST", "/v1/runs", answer)
        execution.execute(action.pk)
        assert Execution.objects.get(pk=action.pk).status in (
            Execution.Status.NOT_APPLIED,
            Execution.Status.UNKNOWN,
        )
    hermes.script("GET", r".*/events", fake_hermes.html(canaries.all_in("no stream")))
    run = received(desk, hermes.run())
    with hub():
        until(lambda: fresh(run).gaps)


def faults(desk: Cast, canaries: Canaries, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of our own whose text holds what it stumbled over."""
    action = start(desk, canaries, "fault")

    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError(canaries.all_in("exception"))

    with monkeypatch.context() as broken:
        broken.setattr("approvals.execution.Client.send", fail)
        execution.execute(action.pk)
    assert Execution.objects.get(pk=action.pk).code == "portal_fault"


def test_nothing_of_any_secret_is_readable_in_what_is_kept_or_shown(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    canaries = Canaries()
    with FakeHermes(key=OWN) as hermes, log() as written:
        desk = factories.cast(base_url=hermes.url, token=OWN, allow_networks=("127.0.0.0/8",))
        factories.policy(
            desk.acme,
            factories.require(
                "run_approval",
                1,
                name="Facts are shown",
                when=[{"field": "prompt.command", "is": "contains", "value": "curl"}],
            ),
            factories.require(
                "run_start",
                1,
                name="A near miss",
                when=[
                    {"field": "input.body.model", "is": "equals", "value": "m"},
                    {"field": "input.body.instructions", "is": "equals", "value": "other"},
                ],
            ),
        )
        live_run(desk, hermes, canaries)
        cut_everywhere(desk, hermes, canaries)
        refused_starts(desk, hermes, canaries)
        faults(desk, canaries, monkeypatch)
        export.checkpoint()
        file = tmp_path / "evidence.jsonl"
        with file.open("wb") as out:
            export.write(export.start_export(tenant=desk.acme, actor=OPERATOR), out)
        auditor = Client()
        auditor.force_login(desk.auditor)
        answer = auditor.post(reverse("export"), {"tenant": "acme"})
        exported = b"".join(answer.streaming_content)  # type: ignore[attr-defined]
        assert exported.count(b"\n") > 20
        places = [
            *rows_of_the_database(),
            *files_of_the_portal(),
            *keys_of_redis(),
            *pages(desk),
            ("the export", file.read_bytes()),
            ("the export page", exported),
            ("the log", written.getvalue().encode()),
        ]
    told = {name: len(data) for name, data in places}
    assert told["the log"] > 0
    assert sum(name.startswith("/runs/") for name in told) > 20, "pages were reached"
    assert len(canaries.planted) > 300
    messages = b"".join(data for name, data in places if name.startswith(("queue/", "redis ")))
    assert b"approvals.tasks.execute" in messages, "there were task payloads to look into"
    leaks = {name: found for name, data in places if (found := canaries.found_in(data))}
    assert leaks == {}, "\n".join(f"{name}: {found}" for name, found in leaks.items())


def test_what_is_sealed_holds_the_secrets_so_the_search_above_could_have_found_them(
    transactional_db: None,
) -> None:
    """The input was really stored, and the search really finds what is readable."""
    canaries = Canaries()
    with FakeHermes(key=OWN) as hermes:
        desk = factories.cast(base_url=hermes.url, token=OWN, allow_networks=("127.0.0.0/8",))
        action = start(desk, canaries, "sealed")
        exact = json.dumps(execution.exact_input(action), ensure_ascii=False).encode()
    assert len(canaries.found_in(exact)) > 10
    assert canaries.found_in(bytes(action.input)) == []
