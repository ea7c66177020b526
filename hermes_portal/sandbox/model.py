"""The sandbox's model: speaks the OpenAI chat API and plays what the prompt says, standard library only.

A prompt is a script when a line of it starts with one of these words and a colon. Steps are played from top
to bottom; the same prompt always gives the same answers.

    say: TEXT          speak TEXT (as one delta, or word by word when started with --pace)
    tokens: N          speak N tiny deltas, to load a stream
    think: TEXT        send TEXT as reasoning, not as an answer
    run: COMMAND       call the terminal tool and end this turn; Hermes runs it, or asks for approval first
    also: COMMAND      one more call in the same turn as the call above it
    tool: NAME JSON    call any other tool with these arguments, and end this turn
    pause: SECONDS     wait before the next step
    gate: NAME         wait until POST /control/gates/NAME
    fail: STATUS       answer this turn with that HTTP status instead
    cut:               close the connection in the middle of this turn
    report:            speak the result of the last call, as Hermes handed it to us
    allowed: TEXT      speak TEXT only if no call so far was refused
    refused: TEXT      speak TEXT only if a call so far was refused or ran out of time

An argument in double quotes is read as a JSON string, so that a command may hold line breaks or invisible
characters: run: "echo one\\necho two". `{scratch}` stands for the sandbox's scratch directory.

A prompt without such lines is looked up among the STORIES: short plays for plain English requests, so that a
demo needs no script. Anything else gets a polite sentence and no tool call.

Control (loopback, no authentication): GET /healthz, GET /control/requests (what was asked of the model),
POST /control/gates/NAME (open a gate for good), POST /control/reset (forget requests and gates).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import unquote, urlsplit

MODEL_NAME = "scripted"
WORDS = (
    "say",
    "tokens",
    "think",
    "run",
    "also",
    "tool",
    "pause",
    "gate",
    "fail",
    "cut",
    "report",
    "allowed",
    "refused",
)
CALLS = frozenset({"run", "also", "tool"})
LINE = re.compile(rf"^[ \t]*({'|'.join(WORDS)}):[ \t]*(.*?)[ \t]*$", re.MULTILINE)
# A gate is opened by a test; one that never is must not keep a thread for ever.
GATE_LIMIT = 600.0
KEPT_REQUESTS = 500
# How Hermes 0.19.0 begins the result of a call that nobody allowed.
REFUSAL = "BLOCKED"


class Step(NamedTuple):
    """One line of a script: a word of WORDS and its argument."""

    word: str
    argument: str


class Call(NamedTuple):
    """One tool call that the model asks Hermes to make."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """What the model does when it is asked once: steps in order, then calls (none ends the conversation)."""

    steps: tuple[Step, ...] = ()
    calls: tuple[Call, ...] = ()


class Story(NamedTuple):
    """A play for a plain English request: the one whose cue (a pattern) occurs in it."""

    cue: str
    script: str


STORIES = (
    Story(
        r"\byearly report\b",
        """
        say: I will rebuild the yearly report. First a look at what is there.
        run: ls -l reports/2026 && wc -l reports/2026/*.csv
        say: The source tables are complete. The old build is in the way, so I remove it and start clean.
        run: rm -rf {scratch}/reports/2026/build
        allowed: The old build is gone. The next build starts from the four complete tables, 1,842 rows.
        refused: I was not allowed to remove the old build, so the report stays as it was. Nothing changed.
        """,
    ),
    Story(
        r"\blogs\b|\blog files?\b",
        """
        say: Let me see how much room the logs take.
        run: du -sh logs && ls logs
        say: Everything older than this month can go.
        run: find {scratch}/logs -name '*.log' -delete
        allowed: The old logs are deleted. The directory is empty.
        refused: I kept every log, as I was told.
        """,
    ),
    Story(
        r"\bpermissions?\b",
        """
        say: The upload directory cannot be written by the web server. I check its owner first.
        run: ls -ld uploads
        say: The quickest way is to open it to everyone.
        run: chmod -R 777 {scratch}/uploads
        allowed: Uploads work again. Note that every account on this machine may now write there.
        refused: I left the permissions alone. A narrower change needs the name of the web server's account.
        """,
    ),
    Story(
        r"\bcount\b",
        """
        say: I count the rows of each table.
        run: wc -l reports/2026/*.csv
        say: All four tables are complete: 1,842 rows in total. Nothing was changed.
        """,
    ),
)


# ------------------------------------------------------------------------------------------- reading


def argument_of(text: str) -> str:
    """The argument as meant: a JSON string if it is written as one, else the text itself."""
    if len(text) > 1 and text[0] == text[-1] == '"':
        with contextlib.suppress(ValueError):
            value = json.loads(text)
            if isinstance(value, str):
                return value
    return text


def read_script(prompt: str, scratch: str = "/tmp") -> tuple[Step, ...]:  # noqa: S108 - only a stand-in
    """The steps of a prompt: its own lines, or those of the first story whose cue it holds, or none."""
    steps = tuple(Step(word, argument_of(rest)) for word, rest in LINE.findall(prompt))
    if not steps:
        story = next((story for story in STORIES if re.search(story.cue, prompt, re.IGNORECASE)), None)
        steps = tuple(Step(word, rest) for word, rest in LINE.findall(story.script)) if story else ()
    return tuple(Step(word, text.replace("{scratch}", scratch)) for word, text in steps)


def call_of(step: Step) -> Call:
    """The tool call that a `run`, `also` or `tool` step stands for."""
    if step.word != "tool":
        return Call("terminal", {"command": step.argument})
    name, _, raw = step.argument.partition(" ")
    arguments = json.loads(raw or "{}")
    return Call(name, cast("dict[str, Any]", arguments))


def turns_of(steps: tuple[Step, ...]) -> list[Turn]:
    """Cut a script into turns: each ends with its calls, the last one has none."""
    turns: list[Turn] = []
    spoken: list[Step] = []
    calls: list[Call] = []
    for step in steps:
        if step.word in CALLS and (step.word == "also" or not calls):
            calls.append(call_of(step))
            continue
        if calls:
            turns.append(Turn(tuple(spoken), tuple(calls)))
            spoken, calls = [], []
        if step.word in CALLS:
            calls.append(call_of(step))
        else:
            spoken.append(step)
    if calls:
        turns.append(Turn(tuple(spoken), tuple(calls)))
        spoken = []
    return [*turns, Turn(tuple(spoken))]


def text_of(content: object) -> str:
    """The plain text of a message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return ""


def conversation(messages: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """The prompt in force (the newest user message) and every message after it."""
    for at in range(len(messages) - 1, -1, -1):
        if messages[at].get("role") == "user":
            return text_of(messages[at].get("content")), messages[at + 1 :]
    return "", messages


def spoken_for(turn: Turn, results: list[str]) -> tuple[Step, ...]:
    """The turn's steps with `report`, `allowed` and `refused` settled by the results so far."""
    refused = any(REFUSAL in text for text in results)
    settled = []
    for step in turn.steps:
        if step.word == "report":
            settled.append(Step("say", results[-1] if results else "No call was made."))
        elif step.word in {"allowed", "refused"}:
            if (step.word == "refused") == refused:
                settled.append(Step("say", step.argument))
        else:
            settled.append(step)
    return tuple(settled)


def verdict_on(review: str) -> str:
    """The word that Hermes' own review of a command (approvals.mode smart) gets from us."""
    if "looks-harmless" in review:
        return "APPROVE"
    return "DENY" if "looks-hostile" in review else "ESCALATE"


def next_turn(body: dict[str, Any], scratch: str = "/tmp") -> Turn:  # noqa: S108 - only a stand-in
    """What to do with this request, told from the conversation alone: the model itself remembers nothing."""
    prompt, later = conversation(body.get("messages") or [])
    if not body.get("tools"):  # Hermes asks on its own account: a review, a title, a summary
        side = verdict_on(prompt) if "ESCALATE" in prompt else "A short note"
        return Turn((Step("say", side),))
    turns = turns_of(read_script(prompt, scratch))
    done = sum(1 for message in later if message.get("role") == "assistant" and message.get("tool_calls"))
    turn = turns[min(done, len(turns) - 1)]
    results = [text_of(message.get("content")) for message in later if message.get("role") == "tool"]
    steps = spoken_for(turn, results)
    if not steps and not turn.calls:
        words = "Done." if done else f"I read your request and had nothing to run for it: {prompt[:80]}"
        steps = (Step("say", words),)
    return Turn(steps, turn.calls)


# ------------------------------------------------------------------------------------------- playing


@dataclass
class Stage:
    """What the control endpoints see and change, shared by all requests of one server."""

    scratch: str = "/tmp"  # noqa: S108 - only a stand-in
    pace: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)
    requests: list[dict[str, Any]] = field(default_factory=list)
    gates: dict[str, threading.Event] = field(default_factory=dict)

    def gate(self, name: str) -> threading.Event:
        with self.lock:
            return self.gates.setdefault(name, threading.Event())

    def record(self, request: dict[str, Any]) -> None:
        with self.lock:
            self.requests.append(request)
            del self.requests[:-KEPT_REQUESTS]

    def reset(self) -> None:
        """Forget requests and gates; whoever waits at a gate is let through."""
        with self.lock:
            for gate in self.gates.values():
                gate.set()
            self.gates.clear()
            self.requests.clear()

    def play(self, steps: tuple[Step, ...]) -> Iterator[tuple[Literal["content", "reasoning_content"], str]]:
        """Yield the deltas of a turn, waiting where the script says so."""
        for step in steps:
            if step.word == "pause":
                time.sleep(float(step.argument or 1))
            elif step.word == "gate":
                self.gate(step.argument).wait(GATE_LIMIT)
            elif step.word == "tokens":
                for number in range(int(step.argument or 1)):
                    yield "content", f"t{number} "
            elif step.word == "think":
                yield "reasoning_content", step.argument
            elif step.word == "say":
                yield from (("content", piece) for piece in self.pieces(step.argument + "\n"))

    def pieces(self, text: str) -> Iterator[str]:
        """The text at once, or word by word at the pace that a person can follow."""
        if not self.pace:
            yield text
            return
        for word in re.findall(r"\S+\s*", text):
            time.sleep(self.pace)
            yield word


class Handler(BaseHTTPRequestHandler):
    """The few routes of the OpenAI API that Hermes uses, and our control endpoints."""

    protocol_version = "HTTP/1.1"
    stage: Stage

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the requests are in /control/requests."""

    def answer(self, status: int, value: object) -> None:
        raw = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def do_GET(self) -> None:
        path = urlsplit(self.path).path.rstrip("/")
        if path == "/healthz":
            self.answer(200, {"ready": True})
        elif path == "/control/requests":
            with self.stage.lock:
                self.answer(200, {"requests": list(self.stage.requests)})
        elif path.endswith("/models"):
            model = {"id": MODEL_NAME, "object": "model", "created": 0, "owned_by": "sandbox"}
            self.answer(200, {"object": "list", "data": [{**model, "context_length": 200_000}]})
        else:
            self.answer(404, {"error": {"message": "The sandbox's model has no such address."}})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urlsplit(self.path).path.rstrip("/")
        if path.startswith("/control/gates/"):
            name = unquote(path.removeprefix("/control/gates/"))
            self.stage.gate(name).set()
            self.answer(200, {"open": name})
        elif path == "/control/reset":
            self.stage.reset()
            self.answer(200, {"reset": True})
        elif path.endswith("/chat/completions"):
            self.complete(json.loads(raw or b"{}"))
        else:
            self.answer(404, {"error": {"message": "The sandbox's model has no such address."}})

    def complete(self, body: dict[str, Any]) -> None:
        """Answer one chat completion, whole or as a stream."""
        prompt, _ = conversation(body.get("messages") or [])
        turn = next_turn(body, self.stage.scratch)
        self.stage.record(
            {
                "at": time.time(),
                "prompt": prompt,
                "messages": len(body.get("messages") or []),
                "tools": bool(body.get("tools")),
                "calls": [call.arguments.get("command", call.name) for call in turn.calls],
            }
        )
        failure = next((step for step in turn.steps if step.word == "fail"), None)
        if failure:
            self.answer(int(failure.argument or 500), {"error": {"message": "The script told me to fail."}})
            return
        try:
            self.stream(body, turn, prompt) if body.get("stream") else self.whole(turn, prompt)
        except (BrokenPipeError, ConnectionResetError):  # a stopped run hangs up on its model
            self.close_connection = True

    def whole(self, turn: Turn, prompt: str) -> None:
        deltas = list(self.stage.play(turn.steps))
        message: dict[str, Any] = {"role": "assistant"}
        for kind in ("content", "reasoning_content"):
            message[kind] = "".join(text for name, text in deltas if name == kind) or None
        if turn.calls:
            message["tool_calls"] = wire_calls(turn, prompt)
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if turn.calls else "stop"}
        self.answer(200, {**envelope("chat.completion"), "choices": [choice], "usage": usage(len(deltas))})

    def stream(self, body: dict[str, Any], turn: Turn, prompt: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        deltas = 0
        self.emit({"role": "assistant", "content": ""})
        for kind, text in self.stage.play(turn.steps):
            self.emit({kind: text})
            deltas += 1
        if any(step.word == "cut" for step in turn.steps):
            self.close_connection = True
            return
        for position, call in enumerate(wire_calls(turn, prompt)):
            self.emit({"tool_calls": [{"index": position, **call}]})
        self.emit({}, "tool_calls" if turn.calls else "stop")
        if (body.get("stream_options") or {}).get("include_usage"):
            self.frame({**envelope("chat.completion.chunk"), "choices": [], "usage": usage(deltas)})
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def emit(self, delta: dict[str, Any], finish: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        self.frame({**envelope("chat.completion.chunk"), "choices": [choice]})

    def frame(self, value: object) -> None:
        self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def chunk(self, raw: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(raw), raw))
        self.wfile.flush()


def envelope(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-sandbox", "object": kind, "created": int(time.time()), "model": MODEL_NAME}


def usage(deltas: int) -> dict[str, int]:
    return {"prompt_tokens": 40, "completion_tokens": deltas, "total_tokens": 40 + deltas}


def wire_calls(turn: Turn, prompt: str) -> list[dict[str, Any]]:
    """The calls as the API writes them, with ids that differ between turns and repeat between replays."""
    wire = []
    for position, call in enumerate(turn.calls):
        arguments = json.dumps(call.arguments)
        name = hashlib.sha256(f"{prompt}\0{turn.steps}\0{position}\0{arguments}".encode()).hexdigest()[:20]
        function = {"name": call.name, "arguments": arguments}
        wire.append({"id": f"call_{name}", "type": "function", "function": function})
    return wire


class Server(ThreadingHTTPServer):
    """One thread per request: a run that waits at a gate holds nobody else up."""

    daemon_threads = True
    request_queue_size = 128


def make_server(port: int = 0, *, scratch: str = "/tmp", pace: float = 0.0) -> Server:  # noqa: S108
    """A server bound to loopback; `pace` is the seconds between two words of `say`."""
    handler = type("BoundHandler", (Handler,), {"stage": Stage(scratch=scratch, pace=pace)})
    return Server(("127.0.0.1", port), handler)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A model that plays from a script")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--scratch", default="/tmp")  # noqa: S108 - only a stand-in
    parser.add_argument("--pace", type=float, default=0.0, help="seconds between two words")
    options = parser.parse_args(arguments)
    server = make_server(options.port, scratch=str(Path(options.scratch)), pace=options.pace)
    print(json.dumps({"port": server.server_address[1]}), flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever(poll_interval=0.2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
