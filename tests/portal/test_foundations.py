"""Clock, ids, canonical JSON, sealing and transitions: what everything else stands on."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from approvals import services
from approvals.models import Approval, Execution
from hermes_portal import canonical, clock, sealing
from hermes_portal.ids import uuid7
from hermes_portal.transitions import Conflict
from runs.models import Prompt, Run
from tests import factories

NEW, OLD = "a" * 64, "b" * 64


def test_ids_sort_by_their_millisecond() -> None:
    first = uuid7()
    time.sleep(0.002)
    second = uuid7()
    assert first < second
    assert {first.version, second.version} == {7}
    assert first.variant == "specified in RFC 4122"


def test_the_clock_is_aware_in_utc_and_near_to_ours(db: None) -> None:
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=5)
    assert clock.now().utcoffset() == timedelta(0)


def test_the_clock_moves_inside_a_transaction(db: None) -> None:
    before = clock.now()
    time.sleep(0.002)
    assert clock.now() > before


def test_canonical_bytes_do_not_depend_on_the_order_of_members() -> None:
    assert canonical.dumps({"b": 1, "a": "né"}) == '{"a":"né","b":1}'.encode()
    assert canonical.digest({"b": 1, "a": 2}) == canonical.digest({"a": 2, "b": 1})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**53, "\ud83d", {1: "x"}])
def test_what_has_no_canonical_form_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        canonical.dumps({"value": value})


@pytest.fixture
def _key(settings: Any) -> None:
    settings.PORTAL_KEYS = f"new:{NEW}"


@pytest.mark.usefixtures("_key")
class TestSealing:
    def test_what_is_sealed_opens_again(self) -> None:
        sealed = sealing.seal(b"token", table="t", tenant="acme")
        assert sealing.unseal(sealed.blob, table="t", tenant="acme") == b"token"
        assert b"token" not in sealed.blob

    def test_the_same_bytes_never_give_the_same_digest(self) -> None:
        assert (
            sealing.seal(b"x", table="t", tenant="a").digest
            != sealing.seal(b"x", table="t", tenant="a").digest
        )

    @pytest.mark.parametrize(
        "place",
        [
            {"table": "other", "tenant": "acme"},
            {"table": "t", "tenant": "other"},
            {"table": "t", "tenant": "acme", "revision": 2},
        ],
    )
    def test_a_blob_opens_in_its_own_row_alone(self, place: dict[str, Any]) -> None:
        sealed = sealing.seal(b"token", table="t", tenant="acme")
        with pytest.raises(sealing.CannotOpen):
            sealing.unseal(sealed.blob, **place)

    def test_a_changed_byte_does_not_open(self) -> None:
        blob = bytearray(sealing.seal(b"token", table="t", tenant="acme").blob)
        blob[-1] ^= 1
        with pytest.raises(sealing.CannotOpen):
            sealing.unseal(bytes(blob), table="t", tenant="acme")

    def test_an_older_key_still_opens_and_the_first_one_seals(self, settings: Any) -> None:
        old = sealing.seal(b"x", table="t", tenant="a").blob
        settings.PORTAL_KEYS = f"newer:{OLD},new:{NEW}"
        assert sealing.unseal(old, table="t", tenant="a") == b"x"
        fresh = sealing.seal(b"x", table="t", tenant="a").blob
        settings.PORTAL_KEYS = f"new:{NEW}"
        with pytest.raises(sealing.CannotOpen, match="newer"):
            sealing.unseal(fresh, table="t", tenant="a")

    def test_likeness_differs_between_tenants(self) -> None:
        assert sealing.likeness("a", b"x") == sealing.likeness("a", b"x")
        assert sealing.likeness("a", b"x") != sealing.likeness("b", b"x")


@pytest.mark.parametrize("keys", ["", "short", "id:zz", f"id:{NEW[:-2]}"])
def test_bad_keys_name_their_variable(settings: Any, keys: str) -> None:
    settings.PORTAL_KEYS = keys
    with pytest.raises(ImproperlyConfigured, match="PORTAL_KEYS"):
        sealing.seal(b"x", table="t", tenant="a")


@pytest.mark.parametrize("model", [Approval, Execution, Run, Prompt])
def test_every_state_has_a_name_and_every_move_leads_to_a_state(model: Any) -> None:
    for source, targets in model.MOVES.items():
        assert source in model.Status.values
        assert set(targets) <= set(model.Status.values)
    reachable = {target for targets in model.MOVES.values() for target in targets}
    first = model._meta.get_field("status").default
    assert reachable | {first} == set(model.Status.values)


def test_a_move_that_is_not_allowed_names_the_state(cast: factories.Cast) -> None:
    factories.policy(cast.acme, factories.require("run_start"))
    approval = services.request(
        user=cast.requester,
        endpoint=cast.endpoint,
        operation="run_start",
        raw={"body": {"input": "Count."}},
        reason="For a test.",
        key="key",
    ).action.approval
    with pytest.raises(Conflict, match="waiting for a decision"):
        approval.move(Approval.Status.CONSUMED)
