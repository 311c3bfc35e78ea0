"""What an error of the JetStream API means for the worker."""

import pytest

from sea_mq_worker.adapters.nats.errors import api_failed
from sea_mq_worker.domain.errors import BrokerUnavailableError, ContractError


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
