"""docs/states.md is drawn from the code."""

from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from approvals.models import Approval, Execution
from hermes_portal.management.commands import states

pytestmark = pytest.mark.once


def test_the_page_is_up_to_date():
    call_command("states", check=True)


def test_a_page_that_is_not_up_to_date_fails_the_check(settings: Any, tmp_path: Path):
    settings.BASE_DIR = tmp_path
    (tmp_path / "docs").mkdir()
    with pytest.raises(CommandError, match=r"manage\.py states"):
        call_command("states", check=True)
    call_command("states", verbosity=0)
    call_command("states", check=True)


@pytest.mark.parametrize("model", states.machines())
def test_every_status_and_every_move_is_drawn(model: type[Any]):
    drawn = states.section(model)
    for state in model.Status.values:
        assert f"| `{state}` |" in drawn
        assert all(f"    {state} --> {target}\n" in drawn for target in states.targets(model, state))


def test_a_status_without_a_way_out_is_final():
    assert "    consumed --> [*]\n" in states.section(Approval)
    assert "    sent --> [*]\n" not in states.section(Execution)


def test_it_begins_where_rows_begin():
    assert "    [*] --> pending\n" in states.section(Approval)
