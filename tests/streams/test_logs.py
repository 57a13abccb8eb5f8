import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from streams.logs import configure_logs


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def test_our_lines_and_those_of_libraries_are_json_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("INFO", "json")
    structlog.get_logger("ours").info("ready", pools=3)
    structlog.get_logger("ours").debug("not this")
    logging.getLogger("library").warning("slow %s", "disk")
    captured = capsys.readouterr()
    assert captured.out == ""
    ours, library = map(json.loads, captured.err.splitlines())
    assert (ours["event"], ours["level"], ours["pools"]) == ("ready", "info", 3)
    assert (library["event"], library["level"]) == ("slow disk", "warning")
    assert ours["timestamp"].endswith("Z")


def test_console_lines_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("warning", "console")
    structlog.get_logger().info("quiet")
    structlog.get_logger().warning("loud", why="because")
    err = capsys.readouterr().err
    assert "quiet" not in err
    assert "loud" in err
    assert "why=because" in err
    with pytest.raises(json.JSONDecodeError):
        json.loads(err)
