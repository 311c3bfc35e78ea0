"""Meaning of a handler's HTTP status (SDS-047, handler contract; POL-047-005, POL-047-006, POL-047-007).

Only the contract's statuses settle a message. Any other status is a Retry that names the status: its
cause is more often the deployment (a wrong URL, a proxy, a missing login) than the message.
"""

from sea_mq_worker.domain.outcomes import Accepted, HandlerResult, Poison, Retry

ACCEPT_STATUSES = frozenset({200, 409})
"""POL-047-005: processed now or earlier."""

_POISON = 422
_ASKS_TO_WAIT = frozenset({429, 503})
_SERVER_ERRORS = range(500, 600)
_UNAVAILABLE = 503
_TOO_LARGE = 413
_DEPLOYMENT = frozenset({*range(300, 400), 401, 403, 404, 405})
"""Statuses of a wrong path, slash, scheme, method or token."""
_MAY_BE_ONE_MESSAGE = frozenset({400, 409, 413, 422})


def result_for_status(
    status: int, *, accept_statuses: frozenset[int], after_seconds: float = 0.0, detail: str = ""
) -> HandlerResult:
    """Decide by the status alone; ``after_seconds`` is the answer's Retry-After (0: no such header).

    ``detail`` may give the answer's size or kind of problem, never its text, which could repeat the payload.
    """
    if status in accept_statuses:
        return Accepted(status)
    if status == _POISON:
        return Poison(f"the handler answered 422{detail}")
    wait = after_seconds if status in _ASKS_TO_WAIT else 0.0
    if status in _SERVER_ERRORS or status in _ASKS_TO_WAIT:
        return Retry(f"the handler answered {status}{detail}", wait)
    if status == _TOO_LARGE:
        error = f"the handler answered 413{detail}: it, or a proxy before it, takes no request of this size"
        return Retry(error, about="size")
    return Retry(
        f"the handler answered {status}{detail}, which its contract does not know: "
        f"check the handler's URL, its token and what is deployed there",
        about="deployment" if status in _DEPLOYMENT else "",
    )


def may_be_one_message(status: int, *, accept_statuses: frozenset[int]) -> bool:
    """Return whether a batch's status other than 200 may be due to one of its messages.

    400, 409, 413, 422 and errors of the server such as 500 may. 503, 429, 401, 404 and the like concern the
    handler or the way to it, so they hold for every message. An accepting status alone confirms no effect.
    """
    may_be_one = status in _SERVER_ERRORS and status != _UNAVAILABLE
    return may_be_one or status in _MAY_BE_ONE_MESSAGE | accept_statuses
