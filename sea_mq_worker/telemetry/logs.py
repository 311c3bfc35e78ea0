"""Logs: one line per record, with a stable ``event`` key; events become records here.

Logs hold no payload and no credential: events carry none, and a foreign exception is logged only by its type
and frames, because drivers quote rows in their messages. Control characters are escaped in both formats, so
no text from outside can forge a line or control a terminal.

Repeated warnings and errors of one kind are limited to a few lines in ten seconds; the next line of that kind
has the number of suppressed ones. An outage writes a few lines, not thousands.

The worker never waits for the reader of the log: lines that a full pipe does not take are lost and counted.
"""

import contextlib
import json
import logging
import os
import select
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from sea_mq_worker.errors import WorkerError
from sea_mq_worker.telemetry.events import EVENTS, Fields

LOGGER = "sea_mq_worker"
LIBRARIES = ("asyncio", "asyncpg", "httpcore2", "httpx2", "nats", "opentelemetry", "uvicorn")
Format = Literal["json", "text"]

_LEVELS = {key: logging.getLevelNamesMapping()[event.level.upper()] for key, event in EVENTS.items()}
_WINDOW_SECONDS = 10.0
_LINES_MAX = 2
"""Cap on lines of one kind in a window; five kinds at once make 60 lines a minute."""
_LINES_MAX_FINAL = 20
"""Cap for events that need an operator's action, event by event."""
_FINAL = frozenset({"event_died", "message_dead_lettered"})
_CHARS_MAX = 2000
_PIECE_BYTES = select.PIPE_BUF
"""Largest write that a ready pipe takes whole, in bytes."""


def configure(*, level: str, format: Format, stream: TextIO) -> None:  # noqa: A002
    """Write the worker's records from ``level`` up, and the libraries' warnings, to ``stream``.

    A further call replaces the handler of the call before.
    """
    root = logging.getLogger()
    for handler in root.handlers:
        if isinstance(handler, _WorkerHandler):
            root.removeHandler(handler)
    root.addHandler(_WorkerHandler(stream, format))
    logging.getLogger(LOGGER).setLevel(level.upper())
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)


class _WorkerHandler(logging.StreamHandler[TextIO]):
    """Writes what the stream's descriptor takes at once, and counts the lines that it does not; a file does.

    A write to a full pipe, or to a halted terminal, would block the whole worker.
    """

    def __init__(self, stream: TextIO, form: Format) -> None:
        super().__init__(stream)
        self.setFormatter(LineFormatter(form))
        self._lost = 0
        self._cut = False
        self._descriptor = -1
        self._poll = select.poll()
        with contextlib.suppress(OSError):  # it has none
            self._descriptor = stream.fileno()
            self._poll.register(self._descriptor, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        if self._descriptor < 0:
            super().emit(record)
            return
        try:
            if self._lost and self._try_write(_lines_lost(self._lost)):
                self._lost = 0
            if self._lost or not self._try_write(record):
                self._lost += 1
        except Exception:  # noqa: BLE001  (no line is worth the work of its caller)
            self._lost += 1

    def _try_write(self, record: logging.LogRecord) -> bool:
        """Write a record's line; False: it was not written, or not as a whole."""
        data = f"{self.format(record)}\n".encode(errors="backslashreplace")
        if self._cut:
            data = b"\n" + data
        while data and self._poll.poll(0):
            data = data[os.write(self._descriptor, data[:_PIECE_BYTES]) :]
            self._cut = bool(data)
        return not data


def _lines_lost(count: int) -> logging.LogRecord:
    extra = {"event": "log_lines_lost", "fields": {"count": count}}
    level = {"levelno": logging.WARNING, "levelname": "WARNING"}
    return logging.makeLogRecord({"name": LOGGER, **level, **extra})


class LineFormatter(logging.Formatter):
    """Formats a record as one line of ``json`` in ASCII, or as ``text`` with an exception's frames below."""

    def __init__(self, form: Format) -> None:
        super().__init__()
        self._is_json = form == "json"

    def format(self, record: logging.LogRecord) -> str:
        at = _timestamp(datetime.fromtimestamp(record.created, UTC))
        event, fields = getattr(record, "event", "logged"), getattr(record, "fields", {})
        message = record.getMessage()[:_CHARS_MAX] if record.msg else ""
        error = record.exc_info[1] if record.exc_info else None
        exception = list(_exception_lines(error)) if error else []
        if not self._is_json:
            kind = f"{record.levelname:<7}", "" if event == "logged" else event
            words = [at, *kind, _escaped(message), *_assignments(fields)]
            return "\n    ".join([" ".join(filter(None, words)), *map(_escaped, exception)])
        line: dict[str, object] = {
            "ts": at,
            "level": record.levelname.lower(),
            "event": event,
            "logger": record.name,
        }
        if message:
            line["message"] = message
        line |= {name: _bounded(value) for name, value in fields.items() if name not in line}
        if exception:
            line["exception"] = "\n".join(exception)
        return json.dumps(line, default=str)


class LogListener:
    """Turns events into records; events below the logger's level cost almost nothing.

    ``clock`` gives monotonic seconds; ``in_text`` puts the event and its fields into the record's message,
    too, for formatters of others.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, in_text: bool = False) -> None:
        self._logger = logging.getLogger(LOGGER)
        self._in_text = in_text
        self._clock = clock
        self._kinds: dict[str, _Kind] = {}

    def emit(self, key: str, /, **fields: Any) -> None:
        if self._logger.isEnabledFor(_LEVELS[key]):
            for each in fields["each"]() if "each" in fields else (fields,):
                self._write(key, each)

    def _write(self, key: str, fields: Fields) -> None:
        values = {name: fields[name] for name in EVENTS[key].fields}
        if _LEVELS[key] >= logging.WARNING:
            kind = self._kinds.setdefault(f"{key} {fields.get('circuit', '')}", _Kind())
            if not kind.count_line(self._clock(), _LINES_MAX_FINAL if key in _FINAL else _LINES_MAX):
                return
            if kind.suppressed:
                values["suppressed"], kind.suppressed = kind.suppressed, 0
        text = " ".join([key, *_assignments(values)]) if self._in_text else ""
        self._logger.log(_LEVELS[key], text, extra={"event": key, "fields": values})


@dataclass(slots=True)
class _Kind:
    """Lines of one kind in the current window, and those suppressed since the last line."""

    begun: float = float("-inf")
    lines: int = 0
    suppressed: int = 0

    def count_line(self, now: float, lines_max: int) -> bool:
        """Return whether the line may be written."""
        if now - self.begun >= _WINDOW_SECONDS:
            self.begun, self.lines = now, 0
        is_written = self.lines < lines_max
        self.lines += is_written
        self.suppressed += not is_written
        return is_written


def _timestamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _assignments(values: Fields) -> list[str]:
    return [f"{name}={_format_value(value)}" for name, value in values.items()]


def _format_value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    text = _escaped(str(_bounded(value)))
    return f'"{text}"' if " " in text or not text else text


def _bounded(value: object) -> object:
    if isinstance(value, datetime):
        return _timestamp(value)
    return value[:_CHARS_MAX] if isinstance(value, str) else value


def _escaped(text: str) -> str:
    text = text[:_CHARS_MAX]
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _exception_lines(error: BaseException) -> Iterator[str]:
    """Yield an exception and its causes by type and frames; only our own errors have their text."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        text = f": {current}" if isinstance(current, WorkerError) else ""
        yield f"{type(current).__module__}.{type(current).__qualname__}{text}"
        for frame in traceback.extract_tb(current.__traceback__):
            yield f"  {frame.filename}:{frame.lineno} in {frame.name}"
        current = current.__cause__ or current.__context__
