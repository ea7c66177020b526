"""The short form of the bench runs and prints its lines. Nothing here looks at how fast anything was."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.__main__ import LINES, Line, ratio

PROJECT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.once
def test_the_short_form_measures_a_served_portal_and_prints_each_ratio_with_its_reference() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "--short"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for line in LINES:
        (printed,) = (text for text in done.stdout.splitlines() if line.distance in text)
        assert line.reference in printed
        assert "x " in printed


@pytest.mark.once
def test_a_ratio_is_the_median_in_medians_of_the_reference() -> None:
    found = {"far": [3.0, 4.0, 50.0], "near": [0.5, 0.4, 9.0]}
    middle, low, high = ratio(found, Line("far", "far", "near", "near"))
    assert (middle, low, high) == (8.0, 7.0, 54.0)
