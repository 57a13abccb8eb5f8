"""TLS and a password against a real broker."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_kafka import JvmBroker, KafkaUnavailable
from pydantic import SecretStr

from schemas.errors import SourceError
from streams.embedded.lifeline import free_port
from streams.kafka import wait_for_kafka
from streams.settings import Settings

pytestmark = pytest.mark.kafka


def keytool(*args: str) -> None:
    tool = shutil.which("keytool")
    if tool is None:
        pytest.skip("there is no keytool on the PATH")
    subprocess.run([tool, "-storepass", "storepass", *args], check=True, capture_output=True)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A broker that asks for TLS and a password on one of its ports, and the right settings for it."""
    folder: Path = tmp_path_factory.mktemp("secure")
    store, ca, port = folder / "store.p12", folder / "ca.pem", free_port()
    keytool(
        "-genkeypair", "-keystore", str(store), "-storetype", "PKCS12", "-alias", "k", "-keyalg", "EC", "-dname", "CN=localhost",
        "-ext", "san=ip:127.0.0.1",
    )  # fmt: skip
    keytool("-exportcert", "-rfc", "-keystore", str(store), "-alias", "k", "-file", str(ca))
    users = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_slodrift="right-password";'
    try:
        broker = JvmBroker(folder, {
            "listeners": f"SECURE://:{port}",
            "advertised.listeners": f"SECURE://127.0.0.1:{port}",
            "listener.security.protocol.map": "SECURE:SASL_SSL",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secure.plain.sasl.jaas.config": users,
            "ssl.keystore.location": str(store),
            "ssl.keystore.password": "storepass",
            "ssl.keystore.type": "PKCS12",
        })  # fmt: skip
        broker.start()
    except KafkaUnavailable as exc:
        pytest.skip(f"no real Kafka here: {exc}")
    yield Settings(
        kafka_bootstrap=f"127.0.0.1:{port}", kafka_security_protocol="SASL_SSL", kafka_sasl_mechanism="PLAIN",
        kafka_sasl_username="slodrift", kafka_sasl_password=SecretStr("right-password"), kafka_tls_ca_file=ca,
    )  # fmt: skip
    broker.stop()


def test_the_right_password_and_certificate(secure: Settings) -> None:
    assert wait_for_kafka(secure, deadline_s=10).brokers


def test_a_wrong_password_is_said_and_not_shown(secure: Settings) -> None:
    wrong = secure.model_copy(update={"kafka_sasl_password": SecretStr("canary-secret")})
    with pytest.raises(SourceError, match=r"[Aa]uthentication failed") as caught:
        wait_for_kafka(wrong, deadline_s=2)
    assert "canary-secret" not in str(caught.value)


def test_an_unknown_certificate_is_refused(secure: Settings) -> None:
    with pytest.raises(SourceError, match="certificate"):
        wait_for_kafka(secure.model_copy(update={"kafka_tls_ca_file": None}), deadline_s=2)
