"""The thirteen capabilities: contract values, their published list, and inputs that are refused with a sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from hermes_portal.hermes import capabilities
from hermes_portal.hermes.capabilities import CONTRACTS, validate_input
from hermes_portal.hermes.errors import InvalidInput
from hermes_portal.hermes.inputs import PROVIDER_BODY_LIMIT

pytestmark = pytest.mark.once

RUN = "run_0123456789abcdef0123456789abcdef"
JOB = "a1b2c3d4e5f6"
READS = {"run_status", "run_events", "jobs_list", "job_get"}
RUN_OPERATIONS = {"run_start", "run_status", "run_events", "run_approval", "run_stop"}
BY_RUN = ["run_status", "run_stop"]
BY_JOB = ["job_get", "job_delete", "job_pause", "job_resume", "job_run"]
MINIMAL: dict[str, dict[str, Any]] = {
    "run_start": {"body": {"input": "hello"}},
    "run_status": {"run_id": RUN},
    "run_events": {"run_id": RUN},
    "run_approval": {"run_id": RUN, "choice": "once"},
    "run_stop": {"run_id": RUN},
    "jobs_list": {},
    "job_create": {"name": "n", "schedule": "every 30m"},
    "job_update": {"job_id": JOB, "prompt": "p"},
    **{operation: {"job_id": JOB} for operation in BY_JOB},
}


def refused(operation: str, raw: object, **options: Any) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        validate_input(operation, raw, **options)
    return caught.value


# --------------------------------------------------------------------------------------- contracts

# What the two specifications publish, written down a second time: W stands for read, write and external
# network, R for read and external network, D for read, delete and external network; a dash for what is not
# stated.
PUBLISHED = {
    row.split()[0]: row.split()[1:]
    for row in """
run_start    POST   /v1/runs                   Workflow medium no  required unsafe    Confidential PII 60 60 W -
run_status   GET    /v1/runs/{run_id}          Workflow low    no  optional safe      Internal     - 30 60 R -
run_events   GET    /v1/runs/{run_id}/events   Workflow low    no  optional safe_read Confidential - - 300 R -
run_approval POST   /v1/runs/{run_id}/approval Workflow medium yes required unsafe    Restricted   PII 30 60 W -
run_stop     POST   /v1/runs/{run_id}/stop     Workflow medium yes required unsafe    Restricted   PII 30 60 W -
jobs_list    GET    /api/jobs                  Tool     low    no  optional safe      Internal     - 30 60 R 5
job_create   POST   /api/jobs                  Tool     medium yes required unsafe    Confidential PII 30 60 W 5
job_get      GET    /api/jobs/{job_id}         Tool     low    no  optional safe      Internal     - 30 60 R 5
job_update   PATCH  /api/jobs/{job_id}         Tool     medium yes required unsafe    Confidential PII 30 60 W 5
job_delete   DELETE /api/jobs/{job_id}         Tool     high   yes required unsafe    Restricted   PII 30 60 D 5
job_pause    POST   /api/jobs/{job_id}/pause   Tool     medium yes required unsafe    Internal     PII 30 60 W 5
job_resume   POST   /api/jobs/{job_id}/resume  Tool     medium yes required unsafe    Internal     PII 30 60 W 5
job_run      POST   /api/jobs/{job_id}/run     Agent    high   yes required unsafe    Confidential PII 30 60 W 5
""".strip().splitlines()
}
EFFECTS = {
    ("read", "write", "external_network"): "W",
    ("read", "external_network"): "R",
    ("read", "delete", "external_network"): "D",
}


def stated(value: object) -> str:
    return "-" if value is None else str(value).replace(" ", "_")


def test_there_are_exactly_the_thirteen_in_the_specifications_order():
    assert list(CONTRACTS) == list(PUBLISHED)


@pytest.mark.parametrize("operation", PUBLISHED)
def test_a_contract_has_the_published_values(operation):
    row = CONTRACTS[operation]
    assert [
        row.method,
        row.path,
        row.kind,
        row.risk,
        "yes" if row.approval else "no",
        row.key,
        stated(row.retry),
        row.published_class,
        "PII" if row.published_pii else "-",
        stated(row.provider_timeout),
        stated(row.aip_timeout),
        EFFECTS[row.side_effects],
        stated(row.expected_latency),
    ] == PUBLISHED[operation]


@pytest.mark.parametrize("operation", PUBLISHED)
def test_what_all_contracts_share(operation):
    row = CONTRACTS[operation]
    assert (row.queue_delay, row.availability, row.redact, row.transaction) == (10, "99.9%", True, False)
    assert (row.stability, row.credential, row.compensation) == ("stable", "bearer", "rollback not supported")


def test_only_modes_that_are_stated_are_there():
    modes = {name: (row.modes, row.expected_mode) for name, row in CONTRACTS.items()}
    assert modes.pop("run_start") == (("sync", "async"), "async")
    assert modes.pop("run_events") == (("async", "stream", "cancel"), "stream")
    assert set(modes.values()) == {(("sync",), None)}


def test_the_four_reads_that_can_hold_personal_data_are_handled_as_confidential():
    for operation, row in CONTRACTS.items():
        published = (row.published_class, row.published_pii)
        expected = ("Confidential", True) if operation in READS else published
        assert (row.handled_class, row.handled_pii) == expected, operation


def test_nine_change_something_and_eight_of_these_need_approval():
    changing = {name for name, row in CONTRACTS.items() if row.mutates}
    assert changing == set(CONTRACTS) - READS
    assert {name for name, row in CONTRACTS.items() if row.approval} == changing - {"run_start"}


def test_an_approval_lives_fifteen_minutes_and_records_three_things():
    for row in CONTRACTS.values():
        assert row.approval_seconds == (900 if row.approval else None)
        assert row.approval_evidence == (
            ("reason", "input_snapshot", "policy_decision") if row.approval else ()
        )


def test_a_required_key_answers_the_original_for_a_day():
    for row in CONTRACTS.values():
        stated = (86400, "ReturnOriginalResult") if row.key == "required" else (None, None)
        assert (row.idempotency_ttl, row.idempotency_collision) == stated


def test_retry_support_and_safety_are_stated_for_jobs_only():
    for operation, row in CONTRACTS.items():
        if operation in RUN_OPERATIONS:
            assert (row.retry_support, row.retry_safety) == (None, None)
        else:
            assert (row.retry_support, row.retry_safety) == (
                (True, "safe") if operation in READS else (False, "unsafe")
            )


def test_the_table_cannot_be_changed():
    with pytest.raises(TypeError):
        CONTRACTS["job_fly"] = CONTRACTS["job_run"]  # type: ignore[index]
    with pytest.raises(AttributeError):
        CONTRACTS["job_run"].approval = False  # type: ignore[misc]
    with pytest.raises(TypeError):
        CONTRACTS["job_get"].input_schema["properties"]["body"] = {}


# --------------------------------------------------------------------------------- published forms


def test_the_list_of_an_endpoint_holds_thirteen_ids_and_is_plain_json():
    listed = capabilities.as_json(" Prod-1 ")
    assert [entry["capability_id"] for entry in listed] == [
        f"cap:hermes_agent:prod-1:{name}" for name in CONTRACTS
    ]
    assert json.loads(json.dumps(listed)) == listed


def test_the_list_is_a_copy():
    capabilities.as_json("a")[0]["input_schema"]["properties"].clear()
    assert capabilities.as_json("a")[0]["input_schema"]["properties"]


def test_declared_values_are_labelled_and_stand_nowhere_else():
    for entry in capabilities.as_json("a"):
        declared = entry.pop("declared_not_measured")
        assert declared["note"] == "declared, not measured"
        assert declared["maximum_queue_delay_seconds"] == 10
        assert declared["availability"] == "99.9%"
        assert declared["expected_latency_seconds"] == (None if entry["operation"] in RUN_OPERATIONS else 5)
        assert not {"latency", "queue", "availability"} & set("_".join(entry).split("_"))


def test_the_page_in_docs_is_the_generated_one():
    page = Path(__file__).parents[3] / "docs" / "capabilities.md"
    again = "run: python -m hermes_portal.hermes.capabilities > docs/capabilities.md"
    assert page.read_text(encoding="utf-8") == capabilities.markdown(), again


@pytest.mark.parametrize("operation", PUBLISHED)
def test_the_schema_names_every_member_that_the_check_takes(operation):
    schema = capabilities.as_json("a")[list(CONTRACTS).index(operation)]["input_schema"]
    assert schema["additionalProperties"] is False
    canonical = validate_input(operation, MINIMAL[operation])
    assert set(schema["required"]) <= set(canonical) <= set(schema["properties"])
    for name in schema["required"]:
        assert refused(
            operation, {key: value for key, value in MINIMAL[operation].items() if key != name}
        ).field


# --------------------------------------------------------------------------------------------- ids


@pytest.mark.parametrize(
    "value",
    [
        RUN[:-1],
        RUN + "0",
        RUN + "\n",
        " " + RUN,
        RUN.upper(),
        "run_x/approval?all=true",
        "run_x#",
        "run_" + "٣" * 32,
        "run_" + "ａ" * 32,
        "../stop",
        "x" * 5000,
        "",
        None,
        5,
        [RUN],
    ],
)
def test_a_run_id_matches_in_full_or_not_at_all(value):
    with pytest.raises(InvalidInput):
        capabilities.check_run_id(value)
    for operation in (*BY_RUN, "run_events"):
        assert refused(operation, {"run_id": value}).field == "run_id"


@pytest.mark.parametrize(
    "value",
    [
        "A1B2C3D4E5F6",
        "a1b2c3d4e5f",
        "a1b2c3d4e5f67",
        "a1b2c3d4e5f6\n",
        "a1b2c3d4e5f6%0a",
        "..%2f..%2fetc",
        "../pause",
        "١٢٣٤٥٦٧٨٩٠١٢",
        "ａ1b2c3d4e5f6",
        "",
        None,
        123456789012,
    ],
)
def test_a_job_id_matches_in_full_or_not_at_all(value):
    with pytest.raises(InvalidInput):
        capabilities.check_job_id(value)
    for operation in BY_JOB:
        assert refused(operation, {"job_id": value}).field == "job_id"
    assert refused("job_update", {"job_id": value, "name": "n"}).field == "job_id"


def test_good_ids_come_back_as_they_are():
    assert capabilities.check_run_id(RUN) == RUN
    assert capabilities.check_job_id(JOB) == JOB


@pytest.mark.parametrize(
    ("value", "expected"), [("prod", "prod"), (" Prod_1-a\t", "prod_1-a"), ("A" * 128, "a" * 128)]
)
def test_an_endpoint_id_is_trimmed_and_lower_cased(value, expected):
    assert capabilities.normalise_endpoint_id(value) == expected


@pytest.mark.parametrize(
    "value", ["", " ", "a b", "a:b", "a/b", "é", "\u212a", "a\n", "\r\na", "a\0", "a" * 129, None, 5]
)
def test_an_endpoint_id_that_cannot_be_one_is_refused(value):
    with pytest.raises(InvalidInput):
        capabilities.normalise_endpoint_id(value)


def test_a_capability_id_reads_back():
    assert capabilities.capability_id("Prod", "run_stop") == "cap:hermes_agent:prod:run_stop"
    assert capabilities.parse_capability_id("cap:hermes_agent:prod:run_stop") == ("prod", "run_stop")


@pytest.mark.parametrize(
    "value",
    [
        "cap:hermes_agent:prod:job_fly",
        "cap:hermes_agent::run_stop",
        "cap:other:prod:run_stop",
        "cap:hermes_agent:prod:run_stop\n",
        "cap:hermes_agent:Prod:run_stop",
        "run_stop",
        None,
    ],
)
def test_an_unknown_capability_id_is_refused(value):
    with pytest.raises(InvalidInput):
        capabilities.parse_capability_id(value)


def test_a_capability_id_needs_a_known_operation():
    with pytest.raises(InvalidInput):
        capabilities.capability_id("prod", "job_fly")
    assert refused("job_fly", {}).field == "operation"


@pytest.mark.parametrize("value", ["a", "!~", "x" * 255])
def test_an_idempotency_key_is_visible_ascii(value):
    assert capabilities.check_idempotency_key(value) == value


@pytest.mark.parametrize("value", ["", "a b", "a\t", "a\n", "é", "\x7f", "x" * 256, None, 5])
def test_another_idempotency_key_is_refused(value):
    with pytest.raises(InvalidInput):
        capabilities.check_idempotency_key(value)


@pytest.mark.parametrize("value", ["a", "support:incident review", "x" * 256, "é"])
def test_a_session_key_has_up_to_256_characters(value):
    assert capabilities.check_session_key(value) == value


@pytest.mark.parametrize(
    "value", ["", " ", " a", "a ", "a\r\nX-Evil: 1", "a\0", "a\x85", "x" * 257, "\ud83d", None, 5]
)
def test_another_session_key_is_refused(value):
    with pytest.raises(InvalidInput):
        capabilities.check_session_key(value)


# --------------------------------------------------------------------------------------- run_start


def start(**body: Any) -> dict[str, Any]:
    return {"body": {"input": "hello", **body}}


def test_body_and_flat_fields_give_one_canonical_input():
    fields = {
        "input": "hi",
        "instructions": "a\nb",
        "model": "m",
        "session_id": "s",
        "previous_response_id": "p",
    }
    wrapped = validate_input("run_start", {"body": fields, "session_key": "k"})
    assert wrapped == {"body": fields, "session_key": "k"}
    assert validate_input("run_start", {**fields, "session_key": "k"}) == wrapped


@pytest.mark.parametrize("other", ["input", "model", "instructions", "anything"])
def test_body_and_fields_are_not_mixed(other):
    error = refused("run_start", {"body": {"input": "hi"}, other: "x"})
    assert error.field == other
    assert "mix" in error.sentence


@pytest.mark.parametrize("body", [None, "hi", ["hi"], 5])
def test_a_body_is_an_object(body):
    assert refused("run_start", {"body": body}).field == "body"


@pytest.mark.parametrize("raw", [None, [], "x", 5])
def test_an_input_is_an_object(raw):
    assert refused("run_status", raw).field == "input"


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "  \n ",
        5,
        0,
        True,
        {},
        {"role": "user", "content": "x"},
        [],
        ["hello"],
        [5],
        [{"content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": ["x"]}],
        [{"role": 5, "content": "x"}],
        [{"role": "", "content": "x"}],
        [{"role": "us\ner", "content": "x"}],
        [{"role": "user", "content": "x", "name": "n"}],
        [{"role": "user", "content": "x"}, {"role": "user", "content": " "}],
        "a\0b",
        "a\ud83db",
    ],
)
def test_an_unusable_input_is_refused_before_any_call(value):
    error = refused("run_start", start(input=value))
    assert error.field.startswith("body.input")
    assert error.sentence.endswith(".")


def test_a_start_without_input_is_refused():
    assert refused("run_start", {}).field == "input"
    assert refused("run_start", {"body": {}}).field == "body.input"


def test_messages_are_taken_if_the_last_has_content():
    messages = [{"role": "assistant", "content": ""}, {"role": "user", "content": "go on\n\x1b[31m"}]
    assert validate_input("run_start", start(input=messages)) == start(input=messages)


def test_a_history_is_a_list_of_messages():
    history = [{"role": "user", "content": "before"}]
    assert validate_input("run_start", start(conversation_history=history)) == start(
        conversation_history=history
    )


@pytest.mark.parametrize("history", ["x", {}, 0, False, [{}], ["x"], [{"role": "user", "content": 5}]])
def test_another_history_is_refused(history):
    assert refused("run_start", start(conversation_history=history)).field.startswith(
        "body.conversation_history"
    )


@pytest.mark.parametrize("name", ["instructions", "model", "session_id", "previous_response_id"])
@pytest.mark.parametrize("value", [5, ["x"], {}, False, "a\0", "a\x1b"])
def test_a_text_of_a_start_is_a_text(name, value):
    assert refused("run_start", start(**{name: value})).field == f"body.{name}"


@pytest.mark.parametrize("name", ["model", "session_id", "previous_response_id"])
def test_a_name_has_one_line_and_an_end(name):
    assert refused("run_start", start(**{name: " "})).field == f"body.{name}"
    assert refused("run_start", start(**{name: "a\nb"})).field == f"body.{name}"
    assert refused("run_start", start(**{name: "x" * 257})).field == f"body.{name}"


def test_empty_optional_fields_are_left_out():
    empty: dict[str, object] = {
        "instructions": "",
        "model": None,
        "session_id": "",
        "conversation_history": [],
    }
    assert validate_input("run_start", {"input": "hi", "session_key": "", **empty}) == {
        "body": {"input": "hi"}
    }


@pytest.mark.parametrize("name", ["provider", "model_options", "author", "stream", "b" * 100, "x\r\ny"])
def test_a_member_of_a_start_that_is_not_known_is_refused(name):
    error = refused("run_start", start(**{name: "x"}))
    assert error.field.startswith("body.")
    assert error.field.isprintable()
    assert len(error.field) < 90


@pytest.mark.parametrize("name", ["endpoint", "base_url", "url"])
@pytest.mark.parametrize("operation", PUBLISHED)
def test_no_input_chooses_an_endpoint(operation, name):
    raw = MINIMAL[operation] if operation != "run_start" else {"input": "hi"}
    error = refused(operation, {**raw, name: "http://other.example/"})
    assert error.field == name
    assert "capability names it" in error.sentence


def test_the_portals_own_cap_counts_bytes_of_json():
    whole = len(b'{"input":""}') + 2 * 100
    assert validate_input("run_start", {"input": "é" * 100}, max_bytes=whole)
    error = refused("run_start", {"input": "é" * 100}, max_bytes=whole - 1)
    assert "at most 211" in error.sentence


def test_the_cap_is_one_mebibyte_unless_told():
    assert "1,048,576" in refused("run_start", {"input": "x" * 1_048_576}).sentence


def test_the_providers_limit_holds_whatever_the_cap():
    frame = len(b'{"input":""}')
    raw = {"body": {"input": "x" * (PROVIDER_BODY_LIMIT - frame)}, "session_key": "k"}
    assert validate_input("run_start", raw, max_bytes=10**9)
    raw["body"] = {"input": "x" * (PROVIDER_BODY_LIMIT - frame + 1)}
    assert "Hermes takes at most 10,000,000" in refused("run_start", raw, max_bytes=10**9).sentence


# ----------------------------------------------------------------------------------- the other runs


@pytest.mark.parametrize("operation", [name for name in PUBLISHED if name != "run_start"])
def test_no_other_operation_takes_a_body(operation):
    error = refused(operation, {**MINIMAL[operation], "body": {}})
    assert error.field == "body"
    assert "no 'body'" in error.sentence


@pytest.mark.parametrize("operation", PUBLISHED)
def test_a_member_that_is_not_known_is_refused(operation):
    assert refused(operation, {**MINIMAL[operation], "surprise": 1}).field == "surprise"


def test_a_read_of_events_has_a_bound():
    assert validate_input("run_events", {"run_id": RUN}) == {"run_id": RUN, "max_events": 4096}
    for bound in (1, 100_000):
        assert validate_input("run_events", {"run_id": RUN, "max_events": bound})["max_events"] == bound


@pytest.mark.parametrize("value", [0, -1, 100_001, "5", 1.0, True, None])
def test_another_bound_is_refused(value):
    assert refused("run_events", {"run_id": RUN, "max_events": value}).field == "max_events"


@pytest.mark.parametrize("choice", ["once", "session", "always", "deny"])
def test_an_answer_is_one_of_four_exact_words(choice):
    raw = {"run_id": RUN, "choice": choice}
    assert validate_input("run_approval", raw) == {**raw, "resolve_all": False}


@pytest.mark.parametrize(
    "choice",
    [
        "ALWAYS",
        " once ",
        "once\n",
        "approve",
        "approved",
        "allow",
        "yes",
        "true",
        True,
        None,
        ["once"],
        {},
        "x" * 10_240,
    ],
)
def test_another_word_is_no_answer(choice):
    assert refused("run_approval", {"run_id": RUN, "choice": choice}).field == "choice"


def test_an_answer_names_one_request_or_resolves_all():
    named = {"run_id": RUN, "choice": "once", "request_id": "a1"}
    assert validate_input("run_approval", named) == {**named, "resolve_all": False}
    everything = {"run_id": RUN, "choice": "deny", "resolve_all": True}
    assert validate_input("run_approval", everything) == everything
    assert refused("run_approval", {**everything, "request_id": "a1"}).field == "resolve_all"


@pytest.mark.parametrize("value", ["", " ", "a b", " a", "é", "x" * 257, 5])
def test_a_request_id_is_visible_ascii(value):
    assert refused("run_approval", {**MINIMAL["run_approval"], "request_id": value}).field == "request_id"


@pytest.mark.parametrize("value", ["true", "false", 1, 0, None, []])
def test_resolve_all_is_a_boolean_and_all_is_not_taken(value):
    assert refused("run_approval", {**MINIMAL["run_approval"], "resolve_all": value}).field == "resolve_all"
    assert "resolve_all" in refused("run_approval", {**MINIMAL["run_approval"], "all": value}).sentence


# -------------------------------------------------------------------------------------------- jobs


def test_a_list_has_one_typed_member_and_no_query():
    assert validate_input("jobs_list", {}) == {"include_disabled": False}
    assert validate_input("jobs_list", {"include_disabled": True}) == {"include_disabled": True}
    assert refused("jobs_list", {"include_disabled": "true"}).field == "include_disabled"
    assert "include_disabled" in refused("jobs_list", {"query": {"include_disabled": True}}).sentence


def test_a_job_takes_all_typed_fields_at_their_bounds():
    raw = {
        "name": "n" * 200,
        "schedule": "s" * 512,
        "prompt": "p" * 5000,
        "deliver": "d" * 256,
        "skills": ["k" * 256] * 256,
        "repeat": 1,
    }
    assert validate_input("job_create", raw) == raw
    changed = {name: value for name, value in raw.items() if name != "repeat"}
    assert validate_input("job_update", {"job_id": JOB, **changed}) == {"job_id": JOB, **changed}


def test_name_and_schedule_are_trimmed_as_hermes_trims_them():
    assert validate_input("job_create", {"name": " n ", "schedule": " every 1h\n"}) == {
        "name": "n",
        "schedule": "every 1h",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", ""),
        ("name", "  "),
        ("name", None),
        ("name", 5),
        ("name", "n" * 201),
        ("name", "a\0b"),
        ("name", "a\nb"),
        ("schedule", ""),
        ("schedule", "s" * 513),
        ("schedule", {"kind": "interval"}),
        ("prompt", None),
        ("prompt", 5),
        ("prompt", "p" * 5001),
        ("prompt", "a\0b"),
        ("deliver", ""),
        ("deliver", None),
        ("deliver", ["local"]),
        ("deliver", "d" * 257),
        ("skills", "one"),
        ("skills", None),
        ("skills", [""]),
        ("skills", [5]),
        ("skills", ["k" * 257]),
        ("skills", ["k"] * 257),
    ],
)
@pytest.mark.parametrize("operation", ["job_create", "job_update"])
def test_a_field_of_a_job_outside_its_bounds_is_refused(operation, name, value):
    error = refused(operation, {**MINIMAL[operation], name: value})
    assert error.field.partition("[")[0] == name
    assert error.sentence.endswith(".")


@pytest.mark.parametrize("value", [True, False, 0, -1, 1.5, "2", None, 10**30, {"times": 2, "completed": 0}])
def test_a_repeat_count_is_a_positive_whole_number(value):
    assert refused("job_create", {**MINIMAL["job_create"], "repeat": value}).field == "repeat"


@pytest.mark.parametrize("value", [2, {"times": 2, "completed": 0}, "2", True, 0, -1, 1.5, None, 10**30])
def test_an_update_never_touches_repeat_and_says_what_to_do(value):
    error = refused("job_update", {"job_id": JOB, "repeat": value, "name": "n"})
    assert error.field == "repeat"
    for step in ("Pause", "create a replacement", "check it", "delete the old job"):
        assert step in error.sentence


def test_an_update_never_touches_enabled_and_says_what_to_do():
    error = refused("job_update", {"job_id": JOB, "enabled": False})
    assert "job_pause" in error.sentence
    assert "job_resume" in error.sentence


@pytest.mark.parametrize("operation", ["job_create", "job_update"])
def test_the_single_skill_of_older_servers_is_refused(operation):
    assert "'skills'" in refused(operation, {**MINIMAL[operation], "skill": "one"}).sentence


def test_an_update_changes_something():
    assert "Nothing would change" in refused("job_update", {"job_id": JOB}).sentence


def test_an_update_may_clear_prompt_and_skills():
    raw = {"job_id": JOB, "prompt": "", "skills": []}
    assert validate_input("job_update", raw) == raw
