"""Settings of a process: where Kafka, Redis and ClickHouse are, and who we are.

From the environment (prefix `SLODRIFT_`), then from the TOML file named by `SLODRIFT_SETTINGS_FILE`, then defaults. With
`SLODRIFT_SECRETS_DIR` a setting may also be a file of that folder named like its variable (`slodrift_kafka_sasl_password`),
which is how Docker and Kubernetes mount secrets. Thresholds, SLOs and caps are not here: they are the policy.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from schemas.errors import ConfigError
from schemas.telemetry_auth import FRAMER, Authenticator, parse_masters

__all__ = ["Settings", "load_settings", "redact_url"]

SETTINGS_FILE = "SLODRIFT_SETTINGS_FILE"
SECRETS_DIR = "SLODRIFT_SECRETS_DIR"


class Settings(BaseSettings):
    """All settings; the variable of a field is `SLODRIFT_` and its name in capitals."""

    model_config = SettingsConfigDict(env_prefix="SLODRIFT_", extra="ignore", frozen=True, hide_input_in_errors=True)

    fleet: str = Field("default", min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")
    """Name of the fleet; part of every Redis key."""
    policy_file: Path | None = None
    """Policy of the pools; None is the built-in default preset."""

    kafka_bootstrap: str = "localhost:9092"
    """Comma-separated `host:port`."""
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    kafka_sasl_username: str | None = None
    kafka_sasl_password: SecretStr | None = None
    kafka_tls_ca_file: Path | None = None
    kafka_tls_cert_file: Path | None = None
    kafka_tls_key_file: Path | None = None
    kafka_tls_key_password: SecretStr | None = None
    kafka_session_timeout_s: float = Field(45.0, ge=1.0)
    """After so long without a heartbeat a consumer's partitions go to another one."""
    kafka_fetch_wait_s: float = Field(0.5, gt=0.0, le=5.0)
    """How long a broker may hold a fetch with nothing to give. A real broker answers at once when data comes."""
    kafka_check_crcs: bool = False
    """Compute the checksum of every batch that a worker reads: several times the work of decoding it. Brokers check it when a
    batch is written, TCP on the way; librdkafka, which the framer reads with, leaves it out as well."""

    judge_group: str = "slodrift-judge"
    archive_group: str = "slodrift-archive"
    framer_group: str = "slodrift-framer"

    generation: int = Field(1, ge=1)
    """Of the decision log: raise it by one when slodrift.decisions was lost and begins again, else hosts obey the old one."""
    snapshot_s: float = Field(30.0, ge=0.5, le=600.0)
    """A judge writes its state down this often, seconds; what came since is read again after a restart."""
    idle_s: float = Field(15.0, ge=1.0)
    """A pool of which nothing came for so long, with nothing left to read, goes on by the wall clock, seconds."""
    archive_quiet_s: float = Field(60.0, ge=0.0, le=3600.0)
    """A series that has nothing to tell is stored this often, seconds; 0 stores every tick of every series."""

    telemetry_keys: SecretStr | None = None
    """Master keys of telemetry's MACs (hexadecimal, with commas during a rotation): the framer and the judge then refuse what
    carries none. None trusts whoever may write telemetry."""
    signing_key_file: Path | None = None
    """Private Ed25519 key (PEM) that the judge signs heads with; None leaves them unsigned."""

    redis_url: SecretStr = SecretStr("redis://localhost:6379/0")
    clickhouse_dsn: SecretStr = SecretStr("clickhouse://default@localhost:8123/slodrift")
    """`clickhouse://user:password@host:port/database` (HTTP; `clickhouses://` with TLS) or `chdb:///folder`."""

    @field_validator("kafka_bootstrap")
    @classmethod
    def _host_port(cls, value: str) -> str:
        for address in value.split(","):
            host, _, port = address.strip().rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ValueError("an address is not host:port; write for example broker-1:9092,broker-2:9092")
        return value

    @field_validator("redis_url")
    @classmethod
    def _redis(cls, value: SecretStr) -> SecretStr:
        return _known_scheme(value, ("redis", "rediss", "unix"))

    @field_validator("clickhouse_dsn")
    @classmethod
    def _clickhouse(cls, value: SecretStr) -> SecretStr:
        return _known_scheme(value, ("clickhouse", "clickhouses", "chdb"))

    @field_validator("telemetry_keys")
    @classmethod
    def _masters(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            try:
                parse_masters(value.get_secret_value())
            except ConfigError as exc:
                raise ValueError(str(exc)) from None
        return value

    def authenticator(self) -> Authenticator | None:
        """Verifies and seals telemetry; None where it is not authenticated.

        Raises:
            ConfigError: The extra `signing` is missing.
        """
        if self.telemetry_keys is None:
            return None
        auth = Authenticator(parse_masters(self.telemetry_keys.get_secret_value()))
        auth.writer(FRAMER)  # a missing library is found now rather than at the first event
        return auth

    @model_validator(mode="after")
    def _sasl_is_complete(self) -> Settings:
        if self.kafka_security_protocol.startswith("SASL") and self.kafka_sasl_mechanism is None:
            raise ValueError("kafka_security_protocol asks for SASL: set kafka_sasl_mechanism, _username and _password")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order of precedence; the file comes after the environment."""
        sources: list[PydanticBaseSettingsSource] = [init_settings, env_settings, file_secret_settings]
        if path := os.environ.get(SETTINGS_FILE):
            sources.append(TomlConfigSettingsSource(settings_cls, path))
        return tuple(sources)


def load_settings(**overrides: Any) -> Settings:
    """Settings of this process; `overrides` (by field name, None = not given) win over everything else.

    Raises:
        ConfigError: One line a fault; values are never shown, they may be secrets.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    path = os.environ.get(SETTINGS_FILE)
    if path and not Path(path).is_file():
        raise ConfigError(f"{SETTINGS_FILE}: {path} is not a file; correct the path or unset the variable")
    try:
        return Settings(_secrets_dir=os.environ.get(SECRETS_DIR), **given)
    except ValidationError as exc:
        lines = [_fault(error["loc"], error["msg"]) for error in exc.errors(include_input=False, include_url=False)]
        raise ConfigError("\n  ".join(["settings are wrong:", *lines])) from None
    except ValueError as exc:  # TOML that does not parse
        raise ConfigError(f"{path}: {exc}") from None


def redact_url(url: str | SecretStr) -> str:
    """`url` without its password and its query (which may hold one), fit for a log line."""
    parts = urlsplit(url.get_secret_value() if isinstance(url, SecretStr) else url)
    netloc = parts.netloc
    if parts.password is not None:
        netloc = f"{parts.username or ''}:***@{netloc.rpartition('@')[2]}"
    return urlunsplit(parts._replace(netloc=netloc, query=""))


def _known_scheme(value: SecretStr, schemes: tuple[str, ...]) -> SecretStr:
    if urlsplit(value.get_secret_value()).scheme not in schemes:
        raise ValueError(f"starts with none of {', '.join(s + '://' for s in schemes)}")
    return value


def _fault(loc: tuple[int | str, ...], message: str) -> str:
    message = message.removeprefix("Value error, ")
    return f"SLODRIFT_{str(loc[0]).upper()}: {message}" if loc else message
