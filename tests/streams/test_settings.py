from pathlib import Path

import pytest

from schemas.errors import ConfigError
from streams.settings import load_settings, redact_url


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SETTINGS_FILE", "SECRETS_DIR", "KAFKA_BOOTSTRAP", "KAFKA_SASL_PASSWORD", "FLEET"):
        monkeypatch.delenv(f"SLODRIFT_{name}", raising=False)


def test_environment_wins_over_file_and_file_over_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "slodrift.toml"
    file.write_text('kafka_bootstrap = "file:1"\nfleet = "from-file"\n')
    monkeypatch.setenv("SLODRIFT_SETTINGS_FILE", str(file))
    monkeypatch.setenv("SLODRIFT_KAFKA_BOOTSTRAP", "env:2")
    settings = load_settings()
    assert (settings.kafka_bootstrap, settings.fleet, settings.framer_group) == ("env:2", "from-file", "slodrift-framer")
    assert load_settings(kafka_bootstrap="flag:3", fleet=None).kafka_bootstrap == "flag:3"


def test_a_secret_is_read_from_a_file_and_never_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "slodrift_kafka_sasl_password").write_text("canary-secret\n")
    monkeypatch.setenv("SLODRIFT_SECRETS_DIR", str(tmp_path))
    monkeypatch.setenv("SLODRIFT_REDIS_URL", "redis://user:canary-secret@host/0")
    monkeypatch.setenv("SLODRIFT_CLICKHOUSE_DSN", "clickhouse://user:canary-secret@host/db")
    settings = load_settings()
    assert settings.kafka_sasl_password is not None
    assert settings.kafka_sasl_password.get_secret_value() == "canary-secret"
    for shown in (repr(settings), str(settings), settings.model_dump_json()):
        assert "canary-secret" not in shown


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("KAFKA_BOOTSTRAP", "canary-secret", "not host:port"),
        ("KAFKA_BOOTSTRAP", "a:1,b:x", "not host:port"),
        ("REDIS_URL", "canary-secret://x", "redis://"),
        ("CLICKHOUSE_DSN", "http://u:canary-secret@h", "clickhouse://"),
        ("KAFKA_FETCH_WAIT_S", "canary-secret", "valid number"),
        ("KAFKA_SECURITY_PROTOCOL", "SASL_SSL", "kafka_sasl_mechanism"),
    ],
)
def test_a_fault_names_the_variable_and_hides_the_value(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(f"SLODRIFT_{name}", value)
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert says in str(caught.value)
    assert "canary-secret" not in str(caught.value)
    assert name.lower() in str(caught.value).lower() or name == "KAFKA_SECURITY_PROTOCOL"


def test_a_file_that_is_missing_or_wrong_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLODRIFT_SETTINGS_FILE", str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match=r"none\.toml is not a file"):
        load_settings()
    (tmp_path / "bad.toml").write_text("fleet = ")
    monkeypatch.setenv("SLODRIFT_SETTINGS_FILE", str(tmp_path / "bad.toml"))
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        load_settings()


def test_redacted_urls_keep_what_helps() -> None:
    assert redact_url("redis://user:pw@host:6379/0") == "redis://user:***@host:6379/0"
    assert redact_url("redis://host:6379/0") == "redis://host:6379/0"
    assert redact_url("clickhouse://:pw@h/db?password=x") == "clickhouse://:***@h/db"
