"""A real Chromium, headless, spoken to by its DevTools protocol over a pair of pipes."""

import asyncio
import base64
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.support.waiting import eventually

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

_ON_PIPES = 'exec "$@" 3<&0 4>&1 </dev/null >/dev/null'
_MESSAGE_BYTES_MAX = 2**26
_OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe"),
)
_KEYS = {
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    "Tab": (9, ""),
    "/": (191, "/"),
    "ArrowLeft": (37, ""),
    "ArrowRight": (39, ""),
}
_TROUBLES = {"Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"}


@dataclass
class Browser:
    """Sends commands and passes events on to pages."""

    writer: asyncio.StreamWriter
    reader: asyncio.StreamReader
    _numbers: Any = field(default_factory=lambda: count(1))
    _waiting: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    _pages: dict[str, "Page"] = field(default_factory=dict)

    async def send(self, method: str, session: str = "", **params: Any) -> Any:
        """Send a command and return its result."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        self._waiting[number] = asyncio.get_running_loop().create_future()
        self.writer.write(json.dumps(message).encode() + b"\0")
        async with asyncio.timeout(20):
            return await self._waiting[number]

    async def listen(self) -> None:
        """Read until the browser ends."""
        while True:
            message = json.loads((await self.reader.readuntil(b"\0"))[:-1])
            if "id" in message:
                future = self._waiting.pop(message["id"])
                if "error" in message:
                    future.set_exception(AssertionError(message["error"]["message"]))
                else:
                    future.set_result(message["result"])
            elif message["method"] in _TROUBLES and message.get("sessionId") in self._pages:
                self._pages[message["sessionId"]].note(message)

    async def page(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> "Page":
        """Open a page in a profile of its own."""
        context = (await self.send("Target.createBrowserContext"))["browserContextId"]
        target = await self.send("Target.createTarget", url="about:blank", browserContextId=context)
        session = await self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = Page(self, session["sessionId"])
        self._pages[page.session] = page
        for domain in ("Page", "Runtime", "Log"):
            await page.send(f"{domain}.enable")
        await page.resize(width, height)
        await page.prefer(dark=dark)
        await page.send("Page.navigate", url=url)
        return page


@dataclass
class Page:
    """One tab; ``troubles`` are errors, warnings and refusals of the page's policy."""

    browser: Browser
    session: str
    troubles: list[str] = field(default_factory=list)

    async def send(self, method: str, **params: Any) -> Any:
        return await self.browser.send(method, self.session, **params)

    async def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        result = await self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, expression: str, *, within: float = 20.0) -> Any:
        """Wait until an expression is true; return its value."""

        async def asked() -> Any:
            with contextlib.suppress(AssertionError):  # such as one about an element that is still to come
                return await self.evaluate(expression)

        return await eventually(asked, within=within, what=expression)

    async def text(self, selector: str) -> str:
        """Return the text of an element as it is rendered."""
        return str(await self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    async def says(self, text: str, selector: str = "main", *, within: float = 20.0) -> None:
        """Wait until an element has a text."""
        place = f"document.querySelector({json.dumps(selector)})"
        await self.until(f"{place}.innerText.includes({json.dumps(text)})", within=within)

    async def click(self, text: str, within: str = "body") -> None:
        """Click the first visible button of such a text, or with such a label."""
        await self.until(
            f"(() => {{ const all = [...document.querySelectorAll({json.dumps(within + ' button')})];"
            f"const found = all.find((b) => b.checkVisibility() && (b.innerText === {json.dumps(text)}"
            f" || b.ariaLabel === {json.dumps(text)})); found?.click(); return Boolean(found); }})()"
        )

    async def write(self, selector: str, text: str) -> None:
        """Write into a field, as by typing."""
        place = f"document.querySelector({json.dumps(selector)})"
        await self.until(f"{place}?.checkVisibility()")
        await self.evaluate(f"{place}.select()")
        await self.evaluate(f"{place}.focus()")
        await self.send("Input.insertText", text=text)

    async def press(self, key: str) -> None:
        """Press a key where the focus is."""
        code, text = _KEYS[key]
        common = {"key": key, "windowsVirtualKeyCode": code}
        await self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        await self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    async def resize(self, width: int, height: int) -> None:
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    async def prefer(self, *, dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, *, whole: bool = True) -> bytes:
        """Return a PNG of the whole page."""
        taken = await self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(taken["data"])

    def note(self, message: dict[str, Any]) -> None:
        """Record an error of the page."""
        params = message["params"]
        if message["method"] == "Runtime.consoleAPICalled" and params["type"] not in {"error", "warning"}:
            return
        self.troubles.append(json.dumps(params)[:500])


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Run a browser for the length of a block."""
    assert PROGRAM is not None, "no Chromium on PATH"
    with tempfile.TemporaryDirectory(prefix="sea-mq-test-", ignore_cleanup_errors=True) as folder:
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", _ON_PIPES, "sh", PROGRAM, *_OPTIONS, f"--user-data-dir={folder}", "about:blank",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL, limit=_MESSAGE_BYTES_MAX,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        browser = Browser(process.stdin, process.stdout)
        listening = asyncio.create_task(browser.listen())
        try:
            yield browser
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            process.kill()
            await process.wait()
