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

# --- Write lines without waiting for a slow or stopped reader.

_PIECE_BYTES = select.PIPE_BUF
"""Largest write that a ready pipe takes whole, in bytes."""


class NonblockingWriter:
    """Writes lines that the descriptor takes at once; a file always does.

    A write to a full pipe, or to a halted terminal, would block the whole worker.
    """

    def __init__(self, stream: TextIO) -> None:
        """Write to the file descriptor of ``stream``.

        Raises:
            OSError: ``stream`` has no file descriptor.
        """
        self._descriptor = stream.fileno()
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLOUT)
        self._cut = False

    def try_write(self, line: str) -> bool:
        """Write a line and its end; False: it was not written, or not as a whole.

        Raises:
            OSError: there is no reader, or no space.
        """
        data = f"{line}\n".encode(errors="backslashreplace")
        if self._cut:
            data = b"\n" + data
        while data and self._poll.poll(0):
            data = data[os.write(self._descriptor, data[:_PIECE_BYTES]) :]
            self._cut = bool(data)
        return not data


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


def configure(*, level: str, format: Format, stream: TextIO) -> None:  # noqa: A002
    """Write the worker's records from ``level`` up, and the libraries' warnings, to ``stream``.

    A further call replaces the handler of the call before.
    """
    root = logging.getLogger()
    for handler in root.handlers:
        if isinstance(handler, _WorkerStreamHandler):
            root.removeHandler(handler)
    writer = _WorkerStreamHandler(stream)
    writer.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root.addHandler(writer)
    logging.getLogger(LOGGER).setLevel(level.upper())
    for name in LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)


class _WorkerStreamHandler(logging.StreamHandler[TextIO]):
    """Never waits for the reader of the log; counts the lines that could not be written at once."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._writer: NonblockingWriter | None = None
        self._lost = 0
        with contextlib.suppress(OSError):
            self._writer = NonblockingWriter(stream)

    def emit(self, record: logging.LogRecord) -> None:
        if self._writer is None:
            super().emit(record)
            return
        try:
            if self._lost and self._writer.try_write(self.format(_lines_lost(self._lost))):
                self._lost = 0
            if self._lost or not self._writer.try_write(self.format(record)):
                self._lost += 1
        except Exception:  # noqa: BLE001  (no line is worth the work of its caller)
            self._lost += 1


def _lines_lost(count: int) -> logging.LogRecord:
    extra = {"event": "log_lines_lost", "fields": {"count": count}}
    level = {"levelno": logging.WARNING, "levelname": "WARNING"}
    return logging.makeLogRecord({"name": LOGGER, **level, **extra})


class JsonFormatter(logging.Formatter):
    """One JSON object per line, in ASCII: ts, level, event, logger, then message and fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": _timestamp(datetime.fromtimestamp(record.created, UTC)),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "logged"),
            "logger": record.name,
        }
        if record.msg:
            line["message"] = _bounded(record.getMessage())
        line |= {name: _bounded(value) for name, value in _fields(record).items() if name not in line}
        if record.exc_info and record.exc_info[1]:
            line["exception"] = "\n".join(_exception_lines(record.exc_info[1]))
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """Time, level, event, then name=value; an exception's frames follow on separate lines."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [_timestamp(datetime.fromtimestamp(record.created, UTC)), f"{record.levelname:<7}"]
        if event := getattr(record, "event", ""):
            parts.append(event)
        if record.msg:
            parts.append(_escaped(record.getMessage()))
        parts += _assignments(_fields(record))
        lines = [" ".join(parts)]
        if record.exc_info and record.exc_info[1]:
            lines += [f"    {_escaped(line)}" for line in _exception_lines(record.exc_info[1])]
        return "\n".join(lines)


class LogListener:
    """Turns events into records; events below the logger's level cost almost nothing.

    Args:
        clock: monotonic seconds.
        in_text: also put the event and its fields into the record's message, for formatters of others.
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
        level = _LEVELS[key]
        values = {name: fields[name] for name in EVENTS[key].fields}
        if level >= logging.WARNING:
            suppressed_count = self._suppressed_count(key, fields)
            if suppressed_count < 0:
                return
            if suppressed_count > 0:
                values["suppressed"] = suppressed_count
        text = " ".join([key, *_assignments(values)]) if self._in_text else ""
        self._logger.log(level, text, extra={"event": key, "fields": values})

    def _suppressed_count(self, key: str, fields: Fields) -> int:
        """Return the number of lines suppressed since the last one of this kind; -1: suppress this line."""
        kind = self._kinds.setdefault(f"{key} {fields.get('circuit', '')}", _Kind())
        return kind.count_line(self._clock(), _LINES_MAX_FINAL if key in _FINAL else _LINES_MAX)


@dataclass(slots=True)
class _Kind:
    """Lines of one kind in the current window."""

    begun: float = float("-inf")
    lines: int = 0
    suppressed: int = 0

    def count_line(self, now: float, lines_max: int) -> int:
        if now - self.begun >= _WINDOW_SECONDS:
            self.begun, self.lines = now, 0
        if self.lines >= lines_max:
            self.suppressed += 1
            return -1
        self.lines += 1
        before, self.suppressed = self.suppressed, 0
        return before


def _fields(record: logging.LogRecord) -> Fields:
    return getattr(record, "fields", {})


def _timestamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _assignments(values: Fields) -> list[str]:
    return [f"{name}={_format_value(value)}" for name, value in values.items()]


def _format_value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, datetime):
        value = _timestamp(value)
    text = _escaped(str(value))
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
