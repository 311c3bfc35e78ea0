"""When a repeat is looked up in the stream instead of trusted to its duplicate window."""

SEARCH_SLACK_SECONDS = 60.0
"""How much further back than the first attempt a search goes."""

_FORGETFUL = 0.8


def may_be_forgotten(seconds_ago: float, *, window_seconds: float) -> bool:
    """Tell whether the stream may not know an id any more by the time it is published again."""
    return seconds_ago > window_seconds * _FORGETFUL
