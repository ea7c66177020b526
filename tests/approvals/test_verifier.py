"""The verifier finds every kind of tampering and names the first bad entry (case 48)."""

import ast
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from approvals import verifier
from approvals.verifier import Problem, Stretches, Unreadable, verify
from hermes_portal import canonical
from tests.approvals.chains import (
    KEY,
    OTHER_KEY,
    Lines,
    MemoryChain,
    chain_of,
    public_key,
    sha256,
    signed,
    write,
)

pytestmark = pytest.mark.once
SOURCE = Path(verifier.__file__)


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., verifier.Report]:
    def run(lines: Lines, **options: Any) -> verifier.Report:
        return verify(write(tmp_path / "export.jsonl", lines), **options)

    return run


Check = Callable[..., verifier.Report]


def problem(report: verifier.Report) -> Problem:
    assert report.problem is not None
    return report.problem


def found(report: verifier.Report) -> tuple[str, int | None]:
    return problem(report).code, problem(report).seq


def edited(line: bytes, **changes: Any) -> bytes:
    """The line with other members, in canonical form again."""
    return canonical.dumps(json.loads(line) | changes)


# --- what holds ------------------------------------------------------------------------------------------------


def test_an_honest_export_verifies(check: Check):
    report = check(chain_of(5).export(), public_key=public_key())
    assert report.ok
    assert (report.entries, report.payloads, report.signature, report.exit_code) == (5, 5, "valid", 0)
    assert report.warnings == []


def test_awkward_but_legal_texts_verify(check: Check):
    texts = [
        '"',
        "\\",
        "\u2028\u0085",
        "\x00\x1f\x7f",
        "né\u0301 🧪 \u202e",
        '"prev":"x"',
        "",
        "a\nb\r\n",
        "\ufb33\U0001f600",
    ]
    chain = chain_of(
        len(texts), data=lambda seq: {texts[seq - 1]: texts, "payload_of": 99, "manifest": [{}, None, True]}
    )
    assert check(chain.export()).ok


def test_a_span_of_the_chain_verifies(check: Check):
    report = check(chain_of(9).export(4, 7))
    assert report.ok
    assert (report.first_seq, report.last_seq) == (4, 7)


def test_an_export_without_entries_verifies(check: Check):
    fields = json.loads(chain_of(1).export()[-1])["manifest"]
    nothing = dict.fromkeys(("first_seq", "last_seq", "first_prev", "head"))
    empty = fields | nothing | {"entries": 0, "payloads": 0, "body_sha256": sha256(b"")}
    report = check([signed(empty)])
    assert report.ok
    assert report.entries == 0


def test_an_erased_payload_with_its_erasure_entry_verifies(check: Check):
    chain = chain_of(4)
    chain.erase(2)
    report = check(chain.export())
    assert report.ok
    assert (report.erased, report.payloads) == (1, 4)


def test_an_erasure_after_the_exported_span_rests_on_the_signature_and_the_report_says_so(check: Check):
    chain = chain_of(4)
    chain.erase(2)
    report = check(chain.export(1, 4, erased_later=[[2, 2]]), public_key=public_key())
    assert report.ok
    assert any("erased after the last entry" in warning for warning in report.warnings)


def test_a_key_that_was_not_pinned_is_a_warning(check: Check):
    report = check(chain_of(2).export())
    assert report.ok
    assert any("not pinned" in warning for warning in report.warnings)


# --- every byte ------------------------------------------------------------------------------------------------


def _whose(lines: Lines) -> list[tuple[int | None, int, int]]:
    """(entry to blame, first byte, end) of every line, its line feed included."""
    spans, at = [], 0
    seq = None
    for line in lines:
        document = json.loads(line)
        seq = None if "manifest" in document else document.get("seq", seq)
        spans.append((seq, at, at + len(line) + 1))
        at += len(line) + 1
    return spans


@pytest.mark.parametrize("shift", [0, 1])
def test_a_change_of_any_single_byte_is_found_at_its_entry(tmp_path: Path, shift: int):
    """At every position a digit, a line feed, a quote or a byte that is no text, in turn."""
    chain = chain_of(2)
    chain.erase(1)
    lines = chain.export()
    whole = b"".join(line + b"\n" for line in lines)
    path = tmp_path / "export.jsonl"
    wrong = []
    for seq, start, end in _whose(lines):
        for at in range(start, end):
            changed = whole[:at] + (b"0", b"\n", b'"', b"\xff")[(at + shift) % 4] + whole[at + 1 :]
            if changed == whole:
                continue
            path.write_bytes(changed)
            report = verify(path, public_key=public_key())
            if report.problem is None or report.problem.seq != seq:
                wrong.append((at, whole[max(0, at - 20) : at + 20], seq, report.problem))
    assert wrong == []


@pytest.mark.parametrize(
    "change",
    [
        {"at": "2026-12-01T08:00:03.000001Z"},
        {"kind": "approval.denied"},
        {"actor": {"kind": "user", "name": "eve"}},
        {"ids": {"action": "x"}},
        {"tenant": "other"},
        {"prev": "1" * 64},
        {"seq": 9},
        {"seq": 2},
        {"seq": 0},
        {"payload_digest": "1" * 64},
        {"v": 2},
        {"v": 0},
        {"extra": 1},
        {"at": "yesterday"},
    ],
)
@pytest.mark.parametrize("seq", [1, 3, 5])
def test_an_entry_rewritten_in_canonical_form_is_named(check: Check, change: dict[str, Any], seq: int):
    lines = chain_of(5).export()
    at = 2 * (seq - 1)
    lines[at] = edited(lines[at], **change)
    assert problem(check(lines)).seq == seq


@pytest.mark.parametrize("seq", [1, 3, 5])
def test_a_payload_rewritten_in_canonical_form_is_named(check: Check, seq: int):
    lines = chain_of(5).export()
    lines[2 * seq - 1] = edited(lines[2 * seq - 1], data={"reason": "another"})
    assert found(check(lines)) == ("payload_edited", seq)


def test_an_entry_and_its_payload_rewritten_together_are_named(check: Check):
    lines = chain_of(5).export()
    lines[5] = edited(lines[5], data={"reason": "another"})
    lines[4] = edited(lines[4], payload_digest=sha256(lines[5]))
    assert found(check(lines)) == ("edited", 3)


# --- whole lines -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seq", [1, 2, 4])
def test_a_deleted_entry_is_named(check: Check, seq: int):
    lines = chain_of(5).export()
    del lines[2 * seq - 2 : 2 * seq]
    assert found(check(lines)) == ("missing", seq)


@pytest.mark.parametrize("seq", [1, 2, 4, 5])
def test_an_entry_deleted_from_before_its_payload_is_named(check: Check, seq: int):
    lines = chain_of(5).export()
    del lines[2 * seq - 2]
    assert found(check(lines)) == ("missing", seq)


def test_an_entry_deleted_behind_an_erased_payload_is_named(check: Check):
    chain = chain_of(5)
    chain.erase(2)
    lines = chain.export()
    del lines[3]  # entry 3; its payload now stands behind entry 2
    assert found(check(lines)) == ("missing", 3)


def test_several_deleted_entries_are_named_by_the_first(check: Check):
    lines = chain_of(8).export()
    del lines[4:10]
    assert found(check(lines)) == ("missing", 3)


@pytest.mark.parametrize("seq", [1, 3, 5])
def test_a_payload_missing_without_an_erasure_is_named(check: Check, seq: int):
    lines = chain_of(5).export()
    del lines[2 * seq - 1]
    assert found(check(lines)) == ("payload_missing", seq)


def test_a_payload_that_is_there_although_it_was_erased_is_named(check: Check):
    chain = chain_of(4)
    kept = chain.payloads[1]
    chain.erase(2)
    chain.payloads[1] = kept
    assert found(check(chain.export())) == ("payload_kept", 2)


def test_an_erasure_entry_does_not_excuse_another_payload(check: Check):
    chain = chain_of(4)
    chain.erase(2)
    chain.payloads[2] = None
    assert found(check(chain.export())) == ("payload_missing", 3)


@pytest.mark.parametrize("seq", [1, 2, 4])
def test_two_neighbours_that_were_swapped_are_named(check: Check, seq: int):
    lines = chain_of(5).export()
    at = 2 * seq - 2
    lines[at : at + 4] = lines[at + 2 : at + 4] + lines[at : at + 2]
    assert found(check(lines)) == ("swapped", seq)


def test_two_distant_entries_that_were_swapped_are_named(check: Check):
    lines = chain_of(7).export()
    lines[2:4], lines[8:10] = lines[8:10], lines[2:4]
    assert found(check(lines)) == ("swapped", 2)


def test_swapped_payloads_are_named(check: Check):
    lines = chain_of(5).export()
    lines[3], lines[7] = lines[7], lines[3]
    assert found(check(lines)) == ("payload_misplaced", 2)


def test_swapped_entries_under_their_payloads_are_named(check: Check):
    lines = chain_of(5).export()
    lines[2], lines[4] = lines[4], lines[2]
    assert found(check(lines)) == ("swapped", 2)


@pytest.mark.parametrize(("position", "seq"), [(0, 1), (2, 2), (4, 3), (10, 6)])
def test_a_forged_entry_is_named_where_it_was_inserted(check: Check, position: int, seq: int):
    chain = chain_of(5)
    lines = chain.export()
    forged = MemoryChain()
    forged.entries = chain.entries[: seq - 1]
    forged.payloads = chain.payloads[: seq - 1]
    forged.add("approval.approved", {"reason": "never happened"})
    lines[position:position] = forged.lines()[-2:]
    assert found(check(lines)) == ("inserted", seq)


def test_a_repeated_entry_is_named(check: Check):
    lines = chain_of(5).export()
    lines[6:6] = lines[0:2]
    assert found(check(lines)) == ("inserted", 1)


def test_lines_behind_the_manifest_are_refused(check: Check):
    lines = chain_of(3).export()
    assert problem(check([*lines, b""])).code == "inserted"
    assert problem(check([*lines, *lines])).code == "inserted"


def test_an_entry_of_another_tenant_is_named(check: Check):
    chain, other = chain_of(4), chain_of(4, "other")
    lines = chain.export()
    lines[4:6] = other.lines(3, 3)
    assert problem(check(lines)).seq in (2, 3)
    assert not check(lines).ok


# --- cut -------------------------------------------------------------------------------------------------------


def test_a_file_cut_at_any_byte_is_noticed_after_its_last_whole_entry(tmp_path: Path):
    lines = chain_of(2).export()
    whole = b"".join(line + b"\n" for line in lines)
    path = tmp_path / "export.jsonl"
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at])
        report = verify(path)
        assert problem(report).code == "cut", at
        complete = sum(b'"payload_digest"' in line for line in whole[:at].split(b"\n")[:-1])
        assert problem(report).seq in (complete, complete + 1, None), at


@pytest.mark.parametrize("left", [1, 3, 4])
def test_a_tail_cut_in_front_of_the_manifest_is_named(check: Check, left: int):
    lines = chain_of(5).export()
    del lines[2 * left : -1]
    assert found(check(lines)) == ("cut", left + 1)


def test_an_erasure_in_a_cut_tail_does_not_hide_the_cut(check: Check):
    chain = chain_of(5)
    chain.erase(2)
    lines = chain.export()
    del lines[-3:-1]
    assert found(check(lines)) == ("cut", 6)


def test_a_head_cut_off_is_named(check: Check):
    lines = chain_of(5).export()
    del lines[:4]
    assert found(check(lines)) == ("missing", 1)


def test_a_shorter_export_signed_anew_is_noticed_with_an_earlier_one(check: Check, tmp_path: Path):
    chain = chain_of(6)
    anchor = write(tmp_path / "earlier.jsonl", chain.export())
    assert check(chain.export(1, 4)).ok
    assert found(check(chain.export(1, 4), anchor=anchor)) == ("cut", 5)


def test_converted_line_ends_are_explained(tmp_path: Path):
    path = tmp_path / "export.jsonl"
    path.write_bytes(b"".join(line + b"\r\n" for line in chain_of(2).export()))
    assert "line end" in problem(verify(path)).sentence


# --- the manifest and its signature ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"entries": 4},
        {"payloads": 6},
        {"first_seq": 2},
        {"last_seq": 6},
        {"head": "1" * 64},
        {"first_prev": "1" * 64},
        {"tenant": "other"},
        {"body_sha256": "1" * 64},
        {"exported_by": "user:eve"},
        {"endpoints": [{"endpoint": "x"}]},
        {"erased_later": [[1, 5]]},
        {"more": 1},
    ],
)
def test_a_manifest_that_was_edited_is_the_one_to_blame(check: Check, change: dict[str, Any]):
    lines = chain_of(5).export()
    manifest = json.loads(lines[-1])
    lines[-1] = canonical.dumps(manifest | {"manifest": manifest["manifest"] | change})
    assert problem(check(lines)).code in ("manifest", "signature")
    assert problem(check(lines)).seq is None


def test_a_manifest_of_another_export_does_not_fit(check: Check):
    chain = chain_of(5)
    lines = [*chain.lines(), chain.export(1, 4)[-1]]
    assert not check(lines).ok


def test_an_export_signed_by_somebody_else_is_refused_when_the_key_is_pinned(check: Check):
    lines = chain_of(3).export(key=OTHER_KEY)
    assert check(lines).ok
    assert problem(check(lines, public_key=public_key(KEY))).code == "key"


@pytest.mark.parametrize("signature", ["", "zz", "00" * 64, "00"])
def test_a_signature_that_is_none_is_refused(check: Check, signature: str):
    lines = chain_of(3).export()
    lines[-1] = canonical.dumps(json.loads(lines[-1]) | {"signature": signature})
    report = check(lines)
    assert problem(report).code == "signature"
    assert report.signature == "invalid"


def test_without_the_package_the_signature_is_said_to_be_unchecked(
    check: Check, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(verifier, "CAN_CHECK_SIGNATURES", False)
    report = check(chain_of(3).export())
    assert report.ok
    assert (report.signature, report.exit_code) == ("unchecked", verifier.SIGNATURE_UNCHECKED)
    assert any("NOT checked" in warning for warning in report.warnings)


# --- history written anew --------------------------------------------------------------------------------------


def _rewritten(chain: MemoryChain, seq: int) -> MemoryChain:
    """The chain with another entry `seq` and everything after it computed anew: perfect by itself."""
    other = MemoryChain(chain.tenant)
    for at in range(1, len(chain.entries) + 1):
        other.add("approval.denied" if at == seq else "approval.approved")
    return other


@pytest.mark.parametrize("seq", [1, 3, 6])
def test_a_rewritten_history_is_found_through_an_earlier_export_at_the_first_entry_that_differs(
    check: Check, tmp_path: Path, seq: int
):
    chain = chain_of(6)
    anchor = write(tmp_path / "earlier.jsonl", chain.export())
    forged = _rewritten(chain, seq)
    forged.add()
    assert check(forged.export()).ok
    assert found(check(forged.export(), anchor=anchor)) == ("rewritten", seq)


def test_the_last_line_of_an_earlier_export_is_enough_to_notice_a_rewritten_history(
    check: Check, tmp_path: Path
):
    chain = chain_of(6)
    anchor = write(tmp_path / "manifest.json", chain.export()[-1:])
    assert found(check(_rewritten(chain, 3).export(), anchor=anchor)) == ("rewritten", 6)


def test_history_after_an_earlier_export_may_grow(check: Check, tmp_path: Path):
    chain = chain_of(4)
    anchor = write(tmp_path / "earlier.jsonl", chain.export())
    chain.add()
    chain.erase(1)
    report = check(chain.export(), anchor=anchor)
    assert report.ok
    assert report.anchored


def test_a_span_that_starts_where_the_earlier_export_ended_is_compared(check: Check, tmp_path: Path):
    chain = chain_of(8)
    anchor = write(tmp_path / "earlier.jsonl", chain.export(1, 4))
    assert check(chain.export(5, 8), anchor=anchor).anchored
    assert found(check(_rewritten(chain, 2).export(5, 8), anchor=anchor))[0] == "rewritten"


def _checkpoint(chain: MemoryChain, seq: int) -> bytes:
    said = {"v": 1, "tenant": chain.tenant, "seq": seq, "head": sha256(chain.entries[seq - 1])}
    return canonical.dumps({"checkpoint": said, "signature": ""})


def test_checkpoints_kept_elsewhere_tell_from_where_a_history_was_written_anew(check: Check, tmp_path: Path):
    chain, other = chain_of(9), chain_of(4, "other")
    points = [_checkpoint(chain, 2), _checkpoint(other, 4), _checkpoint(chain, 5), _checkpoint(chain, 8)]
    anchor = write(tmp_path / "checkpoints.jsonl", points)
    assert check(chain.export(), anchor=anchor).anchored
    assert check(other.export(), anchor=anchor).anchored
    assert found(check(_rewritten(chain, 4).export(), anchor=anchor)) == ("rewritten", 5)
    assert found(check(chain.export(1, 7), anchor=anchor)) == ("cut", 8)
    assert problem(check(chain_of(3, "third").export(), anchor=anchor)).code == "anchor"


def test_an_earlier_export_that_cannot_be_compared_is_no_proof(check: Check, tmp_path: Path):
    chain = chain_of(8)
    apart = write(tmp_path / "apart.jsonl", chain.export(1, 3))
    assert problem(check(chain.export(6, 8), anchor=apart)).code == "anchor"
    other = write(tmp_path / "other.jsonl", chain_of(3, "other").export())
    assert not check(chain.export(), anchor=other).ok


# --- odd files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"\n\n\n",
        b"\x00" * 100 + b"\n",
        b"[]\n",
        b"{}\n",
        b"[" * 100_000 + b"\n",
        b'{"a":' * 50_000 + b"\n",
        b'{"seq":' + b"9" * 10_000 + b"}\n",
        b'{"manifest":{}}\n',
        b'{"manifest":[],"signature":1}\n',
        b'{"data":{},"payload_of":true,"salt":"","tenant":"demo","v":1}\n',
        b'{"seq":NaN}\n',
        '{"seq":１}\n'.encode(),
    ],
)
def test_what_is_no_export_is_refused_and_never_a_traceback(tmp_path: Path, content: bytes):
    path = tmp_path / "export.jsonl"
    path.write_bytes(content)
    assert not verify(path).ok


@settings(max_examples=100, deadline=None)
@given(st.lists(st.binary(max_size=80), max_size=8), st.integers(0, 6))
def test_noise_between_the_lines_is_refused_and_never_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, noise: list[bytes], at: int
):
    lines = chain_of(3).export()
    extra = b"\n".join(noise)
    path = write(tmp_path_factory.getbasetemp() / "noise.jsonl", [*lines[:at], extra, *lines[at:]])
    assert not verify(path).ok


def test_a_file_that_cannot_be_read_and_a_key_that_is_none_are_said_so(tmp_path: Path):
    with pytest.raises(Unreadable, match="cannot be read"):
        verify(tmp_path / "nothing.jsonl")
    path = write(tmp_path / "export.jsonl", chain_of(1).export())
    with pytest.raises(Unreadable, match="64 hex digits"):
        verify(path, public_key="abc")
    with pytest.raises(Unreadable, match="no manifest"):
        verify(path, anchor=write(tmp_path / "anchor", [b"{}"]))


def test_memory_does_not_grow_with_the_file(tmp_path: Path):
    def peak(count: int) -> int:
        path = write(tmp_path / f"{count}.jsonl", chain_of(count).export())
        tracemalloc.start()
        assert verify(path).ok
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(10)  # whatever the first call loads
    assert peak(1000) < peak(100) + 64 * 1024


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30)), max_size=60))
def test_stretches_are_a_set_of_numbers(steps: list[tuple[bool, int]]):
    stretches = Stretches()
    model: set[int] = set()
    for adding, seq in steps:
        (stretches.add if adding else stretches.remove)(seq)
        (model.add if adding else model.discard)(seq)
    assert {seq for seq in range(32) if seq in stretches} == model
    pairs = stretches.pairs()
    assert [seq for low, high in pairs for seq in range(low, high + 1)] == sorted(model)
    assert all(high + 1 < low for (_, high), (low, _) in pairwise(pairs))
    assert stretches.first_outside([[3, 10], [12, 20]]) == min(
        model - {*range(3, 11), *range(12, 21)}, default=None
    )


# --- canonical form --------------------------------------------------------------------------------------------


NUMBERS = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_its_own_canonical_form_agrees_with_the_portals(document: dict[str, Any]):
    assert verifier.canonical(document) == canonical.dumps(document)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_read_back_to_the_same_bytes(value: float):
    written = canonical.dumps([value])
    assert verifier.canonical([value]) == written
    assert verifier.canonical(json.loads(written)) == written


@pytest.mark.parametrize(
    "value", [2**53 + 1, -(2**63) - 1, float("nan"), float("inf"), "\ud800", object(), {1: 2}]
)
def test_what_has_no_canonical_form_is_refused(value: object):
    with pytest.raises((ValueError, TypeError, AttributeError)):
        verifier.canonical([value])


def test_numbers_that_a_server_reported_do_not_make_an_honest_chain_bad(check: Check):
    numbers = [0.1, -0.0, 1e16, 1e21, 1e-7, 123456789.125, 2.0, 5e-324]
    assert check(chain_of(3, data=lambda seq: {"usage": numbers}).export()).ok


# --- as a program of its own -----------------------------------------------------------------------------------


def run(*arguments: str | Path, isolated: bool = False) -> subprocess.CompletedProcess[str]:
    """As an auditor runs it: a copy of the file in another place; `isolated` sees the standard library only."""
    command = [sys.executable, "-I", *(["-S"] if isolated else []), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    copy = tmp_path / "elsewhere" / "verifier.py"
    copy.parent.mkdir()
    copy.write_bytes(SOURCE.read_bytes())
    return copy


def test_it_runs_alone_and_its_exit_code_tells(alone: Path, tmp_path: Path):
    chain = chain_of(4)
    good = write(tmp_path / "good.jsonl", chain.export())
    done = run(alone, good, "--public-key", public_key())
    assert (done.returncode, done.stderr) == (0, "")
    assert "OK: entries 1 to 4 of tenant demo" in done.stdout
    lines = chain.export()
    lines[2] = edited(lines[2], kind="approval.denied")
    done = run(alone, write(tmp_path / "bad.jsonl", lines))
    assert done.returncode == verifier.BAD
    assert done.stdout.startswith("BAD: entry 2, line 3: edited.")
    assert run(alone, tmp_path / "nothing").returncode == verifier.UNREADABLE


def test_with_the_standard_library_only_it_checks_the_chain_and_says_what_it_could_not(
    alone: Path, tmp_path: Path
):
    chain = chain_of(4)
    good = write(tmp_path / "good.jsonl", chain.export())
    done = run(alone, good, isolated=True)
    assert done.returncode == verifier.SIGNATURE_UNCHECKED
    assert "NOT checked" in done.stdout
    assert run(alone, good, "--chain-only", isolated=True).returncode == 0
    lines = chain.export()
    lines[3] = edited(lines[3], data={})
    bad = write(tmp_path / "bad.jsonl", lines)
    assert run(alone, bad, "--chain-only", isolated=True).returncode == verifier.BAD


def test_it_imports_the_standard_library_only_and_cryptography_where_there_is_one():
    tree = ast.parse(SOURCE.read_text())
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module
            names.add(node.module.split(".")[0])
    assert names - set(sys.stdlib_module_names) == {"cryptography"}
