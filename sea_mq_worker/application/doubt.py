"""When a repeat is looked up in the stream instead of trusted to its duplicate window."""

SEARCH_SLACK_SECONDS = 60.0
"""How much further back than the first attempt a search goes."""

_FORGETFUL = 0.8


def may_be_forgotten(seconds_ago: float, *, window_seconds: float, sending_seconds: float = 0.0) -> bool:
    """Tell whether the stream may not know an id any more by the time it is published again.

    Args:
        seconds_ago: since the first attempt; 0 where this is the first.
        window_seconds: the stream's duplicate window.
        sending_seconds: longest time until the repeat reaches the stream.
    """
    return seconds_ago > 0 and seconds_ago + sending_seconds > window_seconds * _FORGETFUL
