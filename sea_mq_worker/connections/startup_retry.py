"""Retries connections at start until the servers are available."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import tenacity

from sea_mq_worker.domain.errors import UnavailableError
from sea_mq_worker.domain.facts import Noticed
from sea_mq_worker.ports.observer import Observer

_WAIT_MAX_SECONDS = 5.0

_T = TypeVar("_T")


async def connect_with_retry(
    connect_once: Callable[[], Awaitable[_T]], *, what: str, observer: Observer
) -> _T:
    """Retry until the server answers, and report each failure.

    Raises:
        ContractError: the server refuses for good.
    """

    def report(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        observer.observe(Noticed(event="waiting", text=f"waiting for {what}: {error}"))

    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(UnavailableError),
        wait=tenacity.wait_random_exponential(multiplier=0.2, max=_WAIT_MAX_SECONDS),
        before_sleep=report,
    )

    async def attempt() -> _T:  # tenacity awaits only what is declared async
        return await connect_once()

    return await retrying(attempt)
