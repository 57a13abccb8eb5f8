"""The audit of a real log: followed, interrupted, verified, tampered with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from schemas.errors import SinkRejected
from schemas.results import Decision, encode_line
from schemas.signing import load_keyring, load_signer
from schemas.topics import DECISIONS, partition_of
from sinks.audit_file import AuditFile
from sinks.migrate import migrate
from streams.cli import main
from streams.embedded import EmbeddedStack
from streams.kafka import client_config
from streams.settings import Settings
from streams.worker.decision_log import EpochRecord, encode_epoch

N_PARTITIONS = 2
POOLS = ("a/eu", "b/us", "c/ap")


class Site:
    """A log of its own, and key files."""

    def __init__(self, stack: EmbeddedStack, folder: Path) -> None:
        self.settings = Settings(kafka_bootstrap=stack.environ["SLODRIFT_KAFKA_BOOTSTRAP"], fleet="prod")
        self.key, self.public, self.file, self.copies = (folder / n for n in ("key", "key.pub", "audit.ndjson", "copies.ndjson"))
        private = Ed25519PrivateKey.generate()
        self.key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        self.key.chmod(0o600)
        self.public.write_bytes(private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        self.seq = 0

    def decide(self, n: int) -> None:
        producer = Producer({**client_config(self.settings), "linger.ms": 1})
        for partition in range(N_PARTITIONS):
            producer.produce(DECISIONS.name, encode_epoch(EpochRecord(generation=1, writer="w")), partition=partition)
        for _ in range(n):
            self.seq += 1
            pool = POOLS[self.seq % 3]
            decision = Decision(
                t=float(self.seq),
                pool=pool,
                scope="node",
                subject="gpu-1",
                state="OPEN",
                version=(1, 0, self.seq),
                tx=str(self.seq),
            )
            producer.produce(DECISIONS.name, encode_line(decision), partition=partition_of(pool, N_PARTITIONS))
        assert producer.flush(20) == 0

    def run(self, *args: str) -> int:
        common = ["--public-key", str(self.public), "--fleet", "prod", "--bootstrap", self.settings.kafka_bootstrap]
        with pytest.raises(SystemExit) as left:
            main(["audit", args[0], str(self.file), *common, *args[1:]])
        return int(left.value.code or 0)

    def follow(self) -> int:
        return self.run("follow", "--key", str(self.key), "--copies", str(self.copies), "--once")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with EmbeddedStack(partitions=N_PARTITIONS) as stack:
        yield Site(stack, tmp_path)


def test_follow_resume_verify_and_tamper(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.decide(30)
    assert site.follow() == 0
    assert capsys.readouterr().out.count("audit_anchor") == 3
    assert site.run("verify", "--with-log", "--anchors", str(site.copies)) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "whole"
    with site.file.open("ab") as file:
        file.write(b'{"kind":"audit_entry","pool":')  # a crash
    site.decide(12)
    assert site.run("verify", "--with-log") == 1  # the torn line is one
    assert site.follow() == 0
    capsys.readouterr()
    assert site.run("verify", "--with-log", "--anchors", str(site.copies)) == 0
    assert "a/eu: 14 decisions, 14 anchored" in capsys.readouterr().out
    lines = site.file.read_bytes().splitlines(keepends=True)

    site.decide(3)
    assert site.run("verify", "--with-log") == 0
    assert "3 decisions of the log are not in the file yet" in capsys.readouterr().out

    site.file.write_bytes(b"".join(lines[:36]))  # back to an honest prefix, anchors and all
    assert site.run("verify") == 0
    assert site.run("verify", "--anchors", str(site.copies)) == 1
    assert "truncated" in capsys.readouterr().out

    forged = list(lines)
    at = next(i for i, line in enumerate(lines) if b"audit_entry" in line)
    forged[at] = forged[at].replace(b'"OPEN"', b'"CLOSED"')
    site.file.write_bytes(b"".join(forged))
    assert site.run("verify", "--with-log") == 1
    said = capsys.readouterr().out
    assert said.count("changed: ") == 2  # by the chain, and by the log
    assert site.follow() == 3  # nothing is added to it
    assert site.file.read_bytes() == b"".join(forged)


def test_copies_in_kafka_and_clickhouse_reveal_a_cut_end(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dsn = f"chdb://{tmp_path / 'chdb'}"
    migrate(dsn)
    monkeypatch.setenv("SLODRIFT_CLICKHOUSE_DSN", dsn)
    for n in (9, 12):
        site.decide(n)
        assert site.run("follow", "--key", str(site.key), "--once", "--to-kafka", "--to-clickhouse") == 0
    for source in ("--from-kafka", "--from-clickhouse"):
        assert site.run("verify", source) == 0
    lines = site.file.read_bytes().splitlines(keepends=True)
    second = [i for i, line in enumerate(lines) if b"audit_anchor" in line][2]
    site.file.write_bytes(b"".join(lines[: second + 1]))  # the first run alone, an honest file
    capsys.readouterr()
    assert site.run("verify") == 0
    for source in ("--from-kafka", "--from-clickhouse"):
        assert site.run("verify", source) == 1
        assert capsys.readouterr().out.count("truncated: ") == 3


def test_place_that_is_away_is_named_and_the_file_goes_on(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLODRIFT_CLICKHOUSE_DSN", f"chdb://{tmp_path / 'chdb'}")  # nobody has made the table
    site.decide(3)
    assert site.run("follow", "--key", str(site.key), "--once", "--to-clickhouse", "--to-kafka") == 3
    assert "3 to ClickHouse" in capsys.readouterr().err
    assert site.run("verify", "--from-kafka") == 0


def test_an_entry_that_the_log_never_had(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever has the auditor's key and file still has not the log."""
    site.decide(6)
    with AuditFile(site.file, "prod", load_signer(site.key), load_keyring([site.public])) as audit:
        raw = encode_line(Decision(t=1.0, pool="a/eu", scope="node", subject="x", state="OPEN", version=(1, 0, 1), tx="x"))
        audit.append(0, [(0, raw)])  # an epoch record is there
        audit.append(partition_of("b/us", N_PARTITIONS), [(10**6, raw.replace(b"a/eu", b"b/us"))])
        audit.anchor(1)
    assert site.run("verify") == 0
    assert site.run("verify", "--with-log") == 1
    said = capsys.readouterr().out
    assert "inserted: a/eu 1" in said
    assert "removed: " in said


def test_file_of_another_fleet_or_key_is_not_continued(site: Site, tmp_path: Path) -> None:
    site.decide(3)
    assert site.follow() == 0
    stranger = tmp_path / "stranger.pub"
    public_key = Ed25519PrivateKey.generate().public_key()
    stranger.write_bytes(public_key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    for fleet, public in (("staging", site.public), ("prod", stranger)):
        with pytest.raises(SinkRejected, match="tampered"):
            AuditFile(site.file, fleet, load_signer(site.key), load_keyring([public]))


def test_what_cannot_be_opened(site: Site, tmp_path: Path) -> None:
    with pytest.raises(SinkRejected, match="cannot be opened"):
        AuditFile(tmp_path / "no" / "file", "prod", load_signer(site.key), load_keyring([site.public]))
    assert site.run("verify") == 2  # there is none yet
