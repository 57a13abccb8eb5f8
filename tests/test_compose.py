"""docker-compose.yml follows the Compose Specification, pins what it runs, holds no secret, and starts commands that exist."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cli_help import help_of
from ruamel.yaml import YAML

from schemas.redis_acl import ROLES, acl_file, user_name
from streams.cli import COMMANDS
from streams.demo.stage import WORKERS
from streams.settings import load_settings

ROOT = Path(__file__).parents[1]
COMPOSE: dict[str, Any] = YAML(typ="safe").load(ROOT / "docker-compose.yml")
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
LONG_RUNNING = {name: service for name, service in SERVICES.items() if service.get("restart") != "no"}
PINNED = re.compile(r"[\w./-]+:\d+\.\d+[\w.-]*")
REQUIRED_VARIABLE = re.compile(r"\$\{\w+:\?[^}]+\}")


def test_follows_the_specification() -> None:
    schema = json.loads((ROOT / "tests/compose/compose-spec.json").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    assert [f"{'.'.join(map(str, e.path))}: {e.message}" for e in validator.iter_errors(COMPOSE)] == []


def test_the_schema_finds_mistakes() -> None:
    schema = json.loads((ROOT / "tests/compose/compose-spec.json").read_text())
    broken = {"services": {"kafka": {"image": "x", "helthcheck": {}}}}
    assert not jsonschema.Draft202012Validator(schema).is_valid(broken)


def test_everything_that_is_planned_is_there() -> None:
    assert {"kafka", "clickhouse", "redis", "grafana", "setup", "judge", "archive", "framer", "simulate"} <= SERVICES.keys()
    assert SERVICES["grafana"]["profiles"] == ["dashboards"]
    assert SERVICES["simulate"]["profiles"] == ["demo"]


@pytest.mark.parametrize("name", SERVICES)
def test_image_is_pinned(name: str) -> None:
    assert PINNED.fullmatch(SERVICES[name]["image"]), SERVICES[name]["image"]


def test_kafka_is_the_version_that_the_tests_use() -> None:
    version = re.search(r"<kafka.version>([\d.]+)</kafka.version>", (ROOT / "tests/kafka/pom.xml").read_text())
    assert version is not None
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{version[1]}"


@pytest.mark.parametrize("name", LONG_RUNNING)
def test_long_running_services_are_watched_and_restarted(name: str) -> None:
    service = LONG_RUNNING[name]
    assert service["restart"] == "unless-stopped"
    assert {"test", "interval", "timeout", "retries"} <= service["healthcheck"].keys()


def test_secrets_are_variables_that_must_be_given() -> None:
    for name, service in SERVICES.items():
        for key, value in service.get("environment", {}).items():
            if "PASSWORD" in key.upper():
                assert REQUIRED_VARIABLE.fullmatch(str(value)), f"{name}: {key}"
            if match := re.search(r"://[^/@:]*:([^@]*)@", str(value)):
                assert REQUIRED_VARIABLE.fullmatch(match[1]), f"{name}: {key}"


def test_redis_users_come_from_files_that_make_draws(tmp_path: Path) -> None:
    files = {name: secret["file"] for name, secret in COMPOSE["secrets"].items()}
    folder = tmp_path / "redis"
    for _ in range(2):  # passwords are drawn once
        subprocess.run([ROOT / "deploy/redis/secrets.sh", folder, "prod"], check=True)
        drawn = {role: (folder / user_name(role)).read_text() for role in ROLES}
        assert {len(password) for password in drawn.values()} == {64}
        assert (folder / "users.acl").read_text() == acl_file("prod", drawn)
        assert (folder / "judge-url").read_text() == f"redis://slodrift-judge:{drawn['judge']}@redis:6379/0"
    assert folder.stat().st_mode & 0o077 == 0
    assert {Path(file).parent.as_posix() for file in files.values()} == {".secrets/redis"}
    assert {Path(file).name for file in files.values()} <= {file.name for file in folder.iterdir()}
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^up:.* .secrets/redis/users.acl$", makefile, re.MULTILINE)
    assert ".secrets/\n" in (ROOT / ".gitignore").read_text()


def test_redis_has_users_and_each_service_the_address_of_its_own() -> None:
    command = " ".join(SERVICES["redis"]["command"])
    assert "--aclfile /run/secrets/redis-users" in command
    assert SERVICES["redis"]["secrets"] == ["redis-users"]
    for name, service in OURS.items():
        sources = [(s["source"], s["target"]) for s in service.get("secrets", [])]
        expected = {"judge": "redis-judge-url", "setup": "redis-setup-url"}.get(name)
        assert sources == ([] if expected is None else [(expected, "slodrift_redis_url")])
        assert "SLODRIFT_REDIS_URL" not in service["environment"], "a variable would win over the file"
        assert service["environment"].get("SLODRIFT_SECRETS_DIR") == (None if expected is None else "/run/secrets")


def test_a_url_from_a_file_is_what_the_worker_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run([ROOT / "deploy/redis/secrets.sh", tmp_path / "redis"], check=True)
    mounted = tmp_path / "run"
    mounted.mkdir()
    (mounted / "slodrift_redis_url").write_text((tmp_path / "redis/judge-url").read_text())
    monkeypatch.setenv("SLODRIFT_SECRETS_DIR", str(mounted))
    monkeypatch.delenv("SLODRIFT_REDIS_URL", raising=False)
    assert load_settings().redis_url.get_secret_value() == (tmp_path / "redis/judge-url").read_text()


def test_ports_are_on_the_loopback_interface() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(str(port).startswith("127.0.0.1:") for port in ports)


def test_data_survive_in_named_volumes() -> None:
    used = {v.split(":")[0] for s in SERVICES.values() for v in s.get("volumes", []) if not v.startswith(".")}
    assert used == COMPOSE["volumes"].keys()
    assert {"kafka-data", "clickhouse-data"} <= used


def test_mounted_files_exist() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            if volume.startswith("."):
                assert (ROOT / volume.split(":")[0]).exists(), volume


def our_command_lines() -> list[tuple[str, list[str]]]:
    lines = []
    for name, service in OURS.items():
        command = service["command"]
        if service.get("entrypoint"):  # a shell that runs several of our commands
            lines += [(name, line.split()[1:]) for line in command[-1].replace("&&", "\n").splitlines() if line.strip()]
        else:
            lines.append((name, command))
    return lines


@pytest.mark.parametrize(("name", "line"), our_command_lines(), ids=lambda v: v if isinstance(v, str) else " ".join(v))
def test_commands_exist_with_these_options(name: str, line: list[str]) -> None:
    assert line[0] in COMMANDS
    text = help_of(*line[:2]) or help_of(line[0])  # the second word is a sub-command or an argument
    assert text
    for option in (word for word in line if word.startswith("--")):
        assert option.split("=")[0] in text, f"{name}: {option}"


def test_workers_start_as_in_the_demo_and_its_test() -> None:
    for role, command in WORKERS.items():
        assert tuple(OURS[role]["command"][: len(command)]) == command


def test_dockerfile_is_pinned_and_not_root() -> None:
    lines = (ROOT / "deploy/Dockerfile").read_text().splitlines()
    assert all(PINNED.fullmatch(line.split()[1]) for line in lines if line.startswith("FROM"))
    assert any(line.startswith("USER ") and line.split()[1] not in ("root", "0") for line in lines)
