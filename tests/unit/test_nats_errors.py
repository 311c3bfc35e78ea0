"""The worker's reaction to each error of the JetStream API."""

import nats.errors
import pytest

from sea_mq_worker.errors import BrokerUnavailableError, ContractError
from sea_mq_worker.nats.errors import api_failed, is_refusal


@pytest.mark.parametrize(
    ("code", "err_code", "kind"),
    [
        (429, 10167, BrokerUnavailableError),  # too many requests
        (503, 10008, BrokerUnavailableError),  # no leader
        (500, 10047, ContractError),  # too little storage
        (500, 10074, ContractError),  # more replicas than servers
        (404, 10059, ContractError),  # no such stream
    ],
)
def test_what_passes_is_an_outage_and_what_stays_a_broken_contract(
    code: int, err_code: int, kind: type[Exception]
) -> None:
    error = api_failed("STREAM.CREATE.ORDERS", {"code": code, "err_code": err_code, "description": "refused"})
    assert isinstance(error, kind)
    assert str(error) == f"STREAM.CREATE.ORDERS: refused ({code}/{err_code})"


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("authorization violation", True),
        ("account authentication expired", True),
        ("authentication timeout", False),
        ("maximum account active connections exceeded", False),
        ('permissions violation for publish to "account.event.opened.v1"', False),
    ],
)
def test_only_an_error_about_the_worker_itself_is_a_refusal(text: str, refused: bool) -> None:
    assert is_refusal(nats.errors.Error(f"nats: {text}")) is refused
