"""Records a scripted behaviour's answer, as the answer for one message of a batch."""

import re
from typing import Any

_WHOLE = re.compile(rb"(?:HTTP/1\.1 1\d\d[^\n]*\r\n\r\n)?HTTP/1\.1 ([2-9]\d\d) (.*?)\r\n\r\n(.*)", re.DOTALL)
_LENGTH = re.compile(rb"content-length: (\d+)")
_WAIT = re.compile(rb"retry-after: (\d+)")


class AnswerRecorder:
    """Stands in for a stream writer, and records the calls."""

    def __init__(self) -> None:
        self.data = b""
        self.is_open = True
        self.transport = self

    def write(self, data: bytes) -> None:
        self.data += data

    async def drain(self) -> None:
        """Behave like a writer that never has to wait."""

    def close(self) -> None:
        self.is_open = False

    def is_closing(self) -> bool:
        return not self.is_open

    abort = close

    def get_extra_info(self, _name: str) -> Any:
        return self

    def setsockopt(self, *_: object) -> None:
        """Behave like the socket of a writer."""

    def element(self, message_id: str) -> dict[str, object] | None:
        """Return the array's element for this answer; None where it is not a whole one."""
        found = _WHOLE.fullmatch(self.data)
        if not found or not self.is_open:
            return None
        status, head, body = found.groups()
        length, wait = _LENGTH.search(head), _WAIT.search(head)
        if length is None or int(length[1]) != len(body):
            return None
        element: dict[str, object] = {"message_id": message_id, "status": int(status)}
        return element | ({"retry_after": int(wait[1])} if wait else {})
