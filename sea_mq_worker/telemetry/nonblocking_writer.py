"""Write lines without waiting for a slow or stopped reader."""

import os
import select
from typing import TextIO

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
