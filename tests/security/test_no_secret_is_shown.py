"""Canary: passwords and keys from the environment appear in no output, error, log or repr, whatever fails."""

from __future__ import annotations

import logging
import pickle
import traceback
from pathlib import Path

import pytest
import structlog

from schemas.errors import SlodriftError
from schemas.telemetry_auth import parse_masters
from sinks.clickhouse import open_client
from sinks.redis_decisions import DecisionSink, connect
from streams.cli import main
from streams.kafka import client_config, make_consumer, make_producer, wait_for_kafka
from streams.logs import configure_logs
from streams.settings import Settings, load_settings, redact_url

CANARY = "canary7f3a"
KEY = "ca0a47" * 11  # 33 bytes of hexadecimal


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "KAFKA_BOOTSTRAP": "127.0.0.1:1", "KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT", "KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
        "KAFKA_SASL_USERNAME": "judge", "KAFKA_SASL_PASSWORD": CANARY, "KAFKA_TLS_KEY_PASSWORD": CANARY,
        "REDIS_URL": f"redis://judge:{CANARY}@127.0.0.1:1/0?password={CANARY}",
        "CLICKHOUSE_DSN": f"clickhouse://archive:{CANARY}@127.0.0.1:1/slodrift",
        "TELEMETRY_KEYS": KEY,
    }.items():  # fmt: skip
        monkeypatch.setenv(f"SLODRIFT_{name}", value)


def hidden(text: str) -> None:
    assert CANARY not in text
    assert KEY not in text


def test_settings() -> None:
    settings = load_settings()
    for shown in (repr(settings), str(settings), settings.model_dump_json(), repr(settings.model_dump()), f"{settings!r:.10000}"):
        hidden(shown)
    hidden(redact_url(settings.redis_url) + redact_url(settings.clickhouse_dsn))
    hidden(repr(settings.authenticator()))
    assert settings.telemetry_keys is not None
    assert parse_masters(settings.telemetry_keys.get_secret_value()), "the canary is a key that works"
    assert client_config(settings)["sasl.password"] == CANARY, "and a password that is used"


def test_wrong_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TELEMETRY_KEYS", KEY[:20]), ("REDIS_URL", f"ftp://x:{CANARY}@h"), ("CLICKHOUSE_DSN", CANARY)):
        with monkeypatch.context() as patch:
            patch.setenv(f"SLODRIFT_{name}", value)
            with pytest.raises(SlodriftError) as caught:
                load_settings()
            hidden("".join(traceback.format_exception(caught.value)))
            assert KEY[:20] not in str(caught.value)


@pytest.mark.parametrize(
    "command",
    [
        ["explain", "some-tx"],
        ["migrate"],
        ["migrate", "--only", "redis"],
        ["override", "p", "n1", "--state", "CLOSED", "--reason", "x", "--key", "/nonexistent"],
        ["audit", "verify", "/nonexistent", "--public-key", "/nonexistent"],
        ["acl"],
        ["policy", "show"],
        ["nonsense"],
    ],
    ids=lambda c: "-".join(c[:2]),
)
def test_commands_that_fail(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(command)
    out, err = capsys.readouterr()
    hidden(out + err)


async def test_servers_that_are_away(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """Errors with their whole chain, and what the drivers log."""
    settings = load_settings()
    caplog.set_level(logging.DEBUG)
    configure_logs("DEBUG", "json")
    log = structlog.get_logger("test")
    said = []
    sink = DecisionSink(connect(settings.redis_url.get_secret_value()), "f")
    for attempt in (
        lambda: open_client(settings.clickhouse_dsn.get_secret_value(), timeout_s=1.0),
        lambda: wait_for_kafka(settings, topics=["t"], deadline_s=1.0),
    ):
        with pytest.raises(SlodriftError) as caught:
            attempt()
        said += traceback.format_exception(caught.value)
        log.error("it failed", cause=str(caught.value), exc_info=caught.value)
    with pytest.raises(SlodriftError) as caught:
        await sink.assert_state("p", [], version=(1, 1, 1), n_eligible=0, cap=0, mode="shadow")
    await sink.close()
    said += traceback.format_exception(caught.value)
    hidden("".join(said))
    hidden(caplog.text)
    out, err = capsys.readouterr()
    hidden(out + err)


def test_clients_of_kafka_do_not_show_their_password() -> None:
    settings = load_settings()
    consumer, producer = make_consumer(settings, "g"), make_producer(settings)
    hidden(repr(consumer) + repr(producer) + str(vars(type(producer))))
    consumer.close()


def test_a_secret_is_not_pickled_by_accident() -> None:
    """A masked value stays masked in dumps for people; only `get_secret_value` gives it."""
    settings = Settings()
    assert CANARY not in settings.model_dump_json(indent=1)
    assert CANARY in pickle.dumps(settings).decode("latin-1"), "this test would notice a canary"


def test_files_of_the_repository_hold_none() -> None:
    root = Path(__file__).parents[2]
    for path in [*root.glob("deploy/**/*"), *root.glob("docker-compose.yml"), *root.glob("dashboards/**/*")]:
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            assert "BEGIN PRIVATE KEY" not in text
            assert "password=" not in text.lower().replace("password=${", "").replace("password=$__", "")
