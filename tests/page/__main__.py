"""Takes the pictures of docs/reference/page.md, in two minutes: ``python -m tests.page docs/images``."""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

from sea_mq_worker.postgres.migrations import migrate
from tests.page.stage import TOKEN, add_dead_event, staged, url_of
from tests.support import servers
from tests.support.browser import Browser, Page, chromium
from tests.support.handlers import Call, answer
from tests.support.site import Site

_WIDTH = 1180
_WAVES = 22


async def main(place: Path) -> None:
    """Set everything up, let traffic come in waves, and take one picture of each state."""
    with tempfile.TemporaryDirectory(prefix="sea-mq-page-") as folder:
        async with (
            servers.postgres(containers=False) as postgres,
            servers.nats(containers=False) as nats,
            servers.scratch_database(postgres, prefix="page_") as database,
            chromium() as browser,
        ):
            await migrate(database.dsn)
            async with staged(database.dsn, nats, "sea", Path(folder)) as site:
                await _take(place, site, browser)


async def _take(place: Path, site: Site, browser: Browser) -> None:
    refused = await site.send(4, b'{"vibe": "calm"}')
    for message_id in refused:
        site.effects.script[message_id] = answer(422)
    event = await add_dead_event(site.database, event_type="order paid", text="two cups")
    async with site.worker(name="orders-7f9c", admin_token_file=site.folder / "token") as worker:
        await worker.ready()
        page = await browser.page(url_of(worker), width=_WIDTH, height=760)
        await page.write("#token", TOKEN)
        await page.press("Enter")
        await _waves(site)
        await _picture(page, place / "page-working.png", 860)
        await page.press("/")
        await page.send("Input.insertText", text=event)
        await page.press("Enter")
        await page.says("it is DEAD", "#found")
        await page.click("Show the event")
        await page.says('"text"', "dialog")
        await page.write("#actor", "Ann")
        await page.write("#reason", "the type is allowed now")
        await _picture(page, place / "page-event.png", 940)
        await page.press("Escape")
        await page.click("Close", "#found")
        site.to_handler.refuse()
        await site.send(40)
        await page.says("The handler takes no messages", "#health", within=40)
        await page.until("/for \\d\\d s/.test(document.querySelector('#since').innerText)")
        await page.prefer(dark=True)
        await _picture(page, place / "page-outage.png", 640)


async def _waves(site: Site) -> None:
    async def slow(call: Call, writer: Any) -> None:
        await asyncio.sleep(0.4)
        await site.effects.take(call, writer)

    site.handler.default = slow
    for wave in range(_WAVES):
        await site.commit(60 + 40 * (wave % 5))
        await site.send(40 + 50 * (wave % 4))
        await asyncio.sleep(5)


async def _picture(page: Page, place: Path, height: int) -> None:
    await page.resize(_WIDTH, height)
    picture = await page.picture(whole=False)
    await asyncio.to_thread(place.write_bytes, picture)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
