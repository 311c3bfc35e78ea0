"""Read by Python itself in a worker whose calls are counted: SIGUSR1 begins to count, a second one tells."""

import os
import signal
import sys
from pathlib import Path
from types import FrameType

_told = Path(os.environ.get("COUNTED_CALLS", ""))
_calls = 0


def _count(_frame: FrameType, event: str, _argument: object) -> None:
    global _calls  # noqa: PLW0603 - as cheap as it can be
    if event in {"call", "c_call"}:
        _calls += 1


def _turn(_number: int, _frame: FrameType | None) -> None:
    if sys.getprofile() is None:
        _told.with_suffix(".begun").touch()
        sys.setprofile(_count)
        return
    sys.setprofile(None)
    whole = _told.with_suffix(".whole")
    whole.write_text(str(_calls))
    whole.rename(_told)


if _told.name:
    signal.signal(signal.SIGUSR1, _turn)
