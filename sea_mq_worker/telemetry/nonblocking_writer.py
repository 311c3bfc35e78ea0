"""Lines written to somebody who may have stopped reading: whoever logs never waits for them."""

import os
import select
from typing import TextIO

_PIECE_BYTES = select.PIPE_BUF
"""What a pipe that takes anything takes whole."""


class NonblockingWriter:
    """Writes lines as long as they are taken at once; files always take them.

    A write to a full pipe, or to a terminal that was halted, would stop the whole worker.
    """

    def __init__(self, stream: TextIO) -> None:
        """Take over from ``stream``, which must lead to a file descriptor.

        Raises:
            OSError: it does not.
        """
        self._descriptor = stream.fileno()
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLOUT)
        self._cut = False

    def takes(self, line: str) -> bool:
        """Write a line and its end; False: it was not taken, or not as a whole.

        Raises:
            OSError: there is no reader any more, or no space.
        """
        data = f"{line}\n".encode(errors="backslashreplace")
        if self._cut:
            data = b"\n" + data
        while data and self._poll.poll(0):
            data = data[os.write(self._descriptor, data[:_PIECE_BYTES]) :]
            self._cut = bool(data)
        return not data
