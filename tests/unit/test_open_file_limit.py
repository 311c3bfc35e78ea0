"""A process that can open no file waits: no server and no file is the cause."""

import errno
import os
from pathlib import Path

import pytest

from sea_mq_worker.connections import read_secret, tls_context
from sea_mq_worker.errors import (
    BrokerUnavailableError,
    ContractError,
    StoreUnavailableError,
    UnavailableError,
)
from sea_mq_worker.nats.connection import sign_in
from sea_mq_worker.nats.errors import connect_failed, is_refusal
from sea_mq_worker.operators.definitions import definitions
from sea_mq_worker.postgres.pool import check_files
from sea_mq_worker.postgres.queries import load_queries
from sea_mq_worker.settings import Settings, SettingsError
from tests.support.processes import no_descriptors_to_spare


def test_statements_need_no_descriptor() -> None:
    with no_descriptors_to_spare():
        assert "acknowledged" in load_queries("checks")


def test_credentials_that_cannot_be_opened_now_are_no_refusal(tmp_path: Path) -> None:
    file = tmp_path / "own.creds"
    with pytest.raises(FileNotFoundError) as missing:
        sign_in(file, "", with_jwt=True)
    with no_descriptors_to_spare(), pytest.raises(OSError, match="Too many open files") as short:
        sign_in(file, "", with_jwt=True)
    assert is_refusal(missing.value)
    assert not is_refusal(short.value)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
def test_a_shortage_while_connecting_to_nats_passes(number: int) -> None:
    error = connect_failed(OSError(number, os.strerror(number), "own.creds"), "nats")
    assert isinstance(error, BrokerUnavailableError)


def test_certificates_that_cannot_be_opened_now_are_waited_for(tmp_path: Path) -> None:
    dsn = f"postgresql://u@h/d?sslmode=verify-full&sslrootcert={tmp_path / 'ca.pem'}"
    with pytest.raises(ContractError, match=r"cannot read .*ca\.pem"):
        check_files(dsn)
    with no_descriptors_to_spare(), pytest.raises(StoreUnavailableError, match=r"cannot read .*ca\.pem"):
        check_files(dsn)


def test_secrets_and_certificates_that_cannot_be_opened_now_are_no_wrong_settings(tmp_path: Path) -> None:
    token, ca = tmp_path / "token", tmp_path / "ca.pem"
    with no_descriptors_to_spare(), pytest.raises(UnavailableError, match=f"SEA_MQ_TOKEN: .*{token}"):
        read_secret(token, key="token")
    with no_descriptors_to_spare(), pytest.raises(UnavailableError, match="SEA_MQ_NATS_TLS_CA_FILE"):
        tls_context("NATS", ca=ca, cert=None, key=None)
    with pytest.raises(SettingsError, match=f"SEA_MQ_TOKEN: .*{token}"):
        read_secret(token, key="token")
    with pytest.raises(SettingsError, match="SEA_MQ_NATS_TLS_CA_FILE"):
        tls_context("NATS", ca=ca, cert=None, key=None)


def test_definitions_that_cannot_be_listed_now_are_named() -> None:
    with no_descriptors_to_spare(), pytest.raises(ContractError, match=r"streams: cannot be listed"):
        definitions(Settings())
