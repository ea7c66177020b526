"""The runner of the suites: no skip goes unseen, no suite is empty, nothing of the caller's deployment leaks in."""

import pytest

from tests import run
from tests.run import Outcome, environment_for, line, main, report_on, skips_in

pytestmark = pytest.mark.once

REPORT = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_runs"/>
<testcase classname="tests.a" name="test_is_skipped"><skipped type="pytest.skip" message="why"/></testcase>
<testcase classname="tests.a" name="test_may_fail"><skipped type="pytest.xfail" message="later"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def report(tmp_path):
    path = tmp_path / "report.xml"
    path.write_text(REPORT)
    return path


def test_skipped_tests_and_expected_failures_are_named(report):
    assert skips_in(report) == ("tests.a::test_is_skipped", "tests.a::test_may_fail")


def test_an_excused_skip_is_left_out(report, monkeypatch):
    monkeypatch.setattr(run, "ALLOWED_SKIPS", {"tests.a::test_is_skipped": "needs a second machine"})
    assert skips_in(report) == ("tests.a::test_may_fail",)


def test_a_run_without_a_report_has_no_skips(tmp_path):
    assert skips_in(tmp_path / "none.xml") == ()


@pytest.mark.parametrize(
    ("code", "skipped", "sentence"),
    [
        (0, (), "passed"),
        (1, (), "failed"),
        (5, (), "selected no test"),
        (0, ("tests.a::test_b",), "skipped without an excuse: tests.a::test_b"),
    ],
)
def test_only_a_clean_suite_passes(code, skipped, sentence, capsys):
    outcome = Outcome("sqlite", 60.0, code, skipped)
    assert outcome.sentence == sentence
    assert report_on([outcome], 60.0) == int(sentence != "passed")
    assert line("sqlite", 60.0) in capsys.readouterr().out


def test_what_a_suite_took_is_told_as_a_share_of_twenty_minutes():
    assert line("sqlite", 60.0).split() == ["sqlite", "60.0", "s", "5%", "of", "20", "min"]


def test_the_callers_own_deployment_stays_outside(monkeypatch, tmp_path):
    monkeypatch.setenv("DATABASE_URL", "postgresql://mine/production")
    monkeypatch.setenv("PORTAL_MODE", "production")
    monkeypatch.setenv("SECRET_KEY_FILE", "/etc/portal/key")
    monkeypatch.setenv("PORTAL_TEST_CHROMIUM", "/opt/chromium")
    environment = environment_for({"REDIS_URL": "redis://throw-away"}, tmp_path)
    assert not {"DATABASE_URL", "PORTAL_MODE", "SECRET_KEY_FILE"} & environment.keys()
    assert environment["PORTAL_TEST_CHROMIUM"] == "/opt/chromium"
    assert (environment["REDIS_URL"], environment["PORTAL_DATA_DIR"]) == ("redis://throw-away", str(tmp_path))


def test_an_unknown_suite_is_an_error_that_names_the_known_ones(capsys):
    assert main(["sqlight"]) == 2
    assert "browser, once, postgresql, sqlite, walk" in capsys.readouterr().err
