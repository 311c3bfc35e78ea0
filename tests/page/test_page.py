"""The page in a real browser, on a real worker: what it shows, and what it does to the database."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sea_mq_worker.nats.connection import api
from tests.page.stage import AMOUNT, HOSTILE, TOKEN, add_dead_event, staged, url_of
from tests.support.browser import PROGRAM, Browser, Page, chromium
from tests.support.handlers import answer
from tests.support.servers import Database
from tests.support.site import Site

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on PATH")

PHONE = 390
ROWS = "document.querySelectorAll('#list > .wide tbody tr').length"
PROCESSED = "SELECT count(*) FROM inbox_messages WHERE processed_at IS NOT NULL"


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as running:
        yield running


@pytest.fixture
async def site(database: Database, nats_url: str, names: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with staged(database.dsn, nats_url, names, tmp_path) as made:
        yield made


@asynccontextmanager
async def unlocked(browser: Browser, site: Site, **settings: object) -> AsyncIterator[Page]:
    """Open the page of a worker that has a token, and give it."""
    async with site.worker(admin_token_file=site.folder / "token", **settings) as worker:
        await worker.ready()
        page = await browser.page(url_of(worker))
        await page.says("This worker requires its token")
        page.troubles.clear()  # the answer 401 is told on the console
        await page.write("#token", TOKEN)
        await page.press("Enter")
        await page.until("document.querySelector('#search').checkVisibility()")
        yield page


async def change(page: Page, reason: str) -> None:
    """Fill the form of a change, and send it."""
    await page.write("#actor", "Ann")
    await page.write("#reason", reason)
    await page.press("Enter")


async def turn_pages(page: Page, *numbers: int) -> None:
    """Press More until it is gone; the list has a number of rows after each page."""
    for number in numbers:
        await page.until(f"{ROWS} === {number}")
        if number < numbers[-1]:
            await page.click("More", "#list")


async def fits(page: Page, width: int) -> bool:
    await page.resize(width, 844)
    return bool(await page.evaluate(f"document.documentElement.scrollWidth <= {width}"))


@pytest.mark.fault("S10")
async def test_the_page_without_a_token_shows_only_numbers_and_the_first_step(
    browser: Browser, site: Site
) -> None:
    async with site.worker() as worker:
        await worker.ready()
        page = await browser.page(url_of(worker))
        await page.says("No event or message yet")
        first = await page.text("#next-steps code")
        assert await fits(page, PHONE)
        await site.database.execute(first)
        await page.says("Working", "#state", within=30)
        await page.until("document.querySelector('.side dd').innerText === '1'")
        await site.database.execute(
            first.replace("payload)", "payload, available_at)").replace(
                "'{}')", "'{}', now() + interval '1 day')"
            )
        )
        await page.says("1 scheduled for later", ".side .dead", within=30)
        await site.database.execute(first.replace("'order.paid'", "'no type'"))
        died = "[...document.querySelectorAll('.side dt')].find((dt) => dt.innerText === 'became DEAD')"
        await page.until(
            f"{died}.nextElementSibling.matches('.warn') && {died}.nextElementSibling.innerText === '1'"
        )
        await page.says("SEA_MQ_ADMIN_TOKEN_FILE")
        assert not await page.evaluate("document.querySelector('#search').checkVisibility()")
        assert await page.evaluate("fetch('api/events').then((answer) => answer.status)") == 403
        page.troubles = [trouble for trouble in page.troubles if "api/events" not in trouble]
        assert page.troubles == []


@pytest.mark.fault("S10")
async def test_with_the_token_an_event_is_found_shown_and_replayed(browser: Browser, site: Site) -> None:
    event = await add_dead_event(site.database, event_type=f"no {HOSTILE}")
    async with unlocked(browser, site) as page:
        await page.press("/")
        await page.send("Input.insertText", text=event[:12])
        await page.press("Enter")
        await page.says("it is DEAD and will not be published", "#found")
        assert await page.evaluate("document.activeElement.id") == "found"
        await page.click("Show the event")
        await page.says('"text": "<img src=x onerror=alert(1)>"', "dialog")
        await page.says(f'"total": {AMOUNT}', "dialog")
        await change(page, "the type is allowed now")
        await page.says("Done: it is PENDING again", "dialog")
        await page.press("Escape")
        assert not await page.evaluate("document.querySelector('#detail').open")
        await page.click("Operator actions")
        await page.says("the type is allowed now", "#list")
        assert page.troubles == []
    row = await site.database.fetchrow("SELECT actor, action, reason, affected FROM operator_actions")
    assert tuple(row) == ("Ann (page)", "replay", "the type is allowed now", 1)
    assert await site.database.fetchval("SELECT publish_attempts FROM outbox_events") <= 1


async def test_the_address_that_dev_prints_signs_in_and_keeps_no_token(
    browser: Browser, tmp_path: Path
) -> None:
    async with dev(tmp_path) as printed:
        page = await browser.page(printed)
        await page.says("No event is DEAD", "#list")
        await page.click("Operator actions")
        await page.says("Nobody has changed anything by hand", "#list")
        token = printed.partition("#token=")[2]
        assert len(token) > 40
        assert token not in await page.evaluate("document.URL + document.documentElement.outerHTML")
        visited = (await page.send("Page.getNavigationHistory"))["entries"]
        assert not any(token in entry["url"] for entry in visited)
        assert page.troubles == []
        await page.evaluate("location.hash = '#token=wrong'")
        await page.says("The token is wrong")
        await page.says("Locked, ready", "#state")
        assert await page.text("#next-steps") == ""


@pytest.mark.fault("S10")
async def test_dead_letters_are_shown_in_pages_and_redriven_alone_or_by_group(
    browser: Browser, site: Site
) -> None:
    site.handler.default = answer(422)
    sent = await site.send(120, b'{"vibe": "calm"}')
    async with site.worker(handler_slow_after=1000) as worker:
        await worker.ready()
        await site.quiet()
    async with unlocked(browser, site) as page:
        await page.says("120 dead letters", "#health")
        await page.until("document.querySelector('#tab-letters').innerText.includes('120')")
        assert await page.evaluate("document.querySelector('#tab-letters').ariaSelected") == "true"
        await page.evaluate("document.querySelector('#tab-events').click()")
        await page.says("No event is DEAD", "#list")
        await page.evaluate("document.querySelector('#tab-events').focus()")
        await page.press("ArrowRight")
        await page.says("REJECTED", "#list")
        await turn_pages(page, 50, 100, 120)
        assert await page.evaluate("!document.querySelector('#list > .wide > button')")
        assert await fits(page, PHONE)
        await page.prefer(dark=True)
        assert await fits(page, 320)
        await page.write("#list input", "REJECTED")
        await page.press("Enter")
        await page.until(f"{ROWS} === 50")
        await page.click("Show dead letter 7", "#list")
        await page.says('"vibe": "calm"', "dialog")
        await page.write("#actor", "Ann")
        await page.write("#reason", "the handler is fixed")
        await page.evaluate("document.querySelector('dialog .act').focus()")
        await page.press("Enter")
        await page.says("Not done: the handler answered 422", "dialog")
        assert await page.evaluate("document.activeElement.className") == "act"
        site.handler.default = answer(200)
        await page.press("Enter")
        await page.says("Done: processed, the handler answered 200", "dialog")
        await page.press("Escape")
        await page.until("!document.querySelector('[aria-label=\"Show dead letter 7\"]')")
        assert await page.evaluate("document.querySelector('#list input').value") == "REJECTED"
        site.handler.default = answer(422)
        await page.click(f"Redrive all 119 of REJECTED, {site.subject}", "#list")
        await change(page, "the handler is fixed")
        await page.says("stopped, 0 of 119, 10 without an effect: the handler answered 422", "dialog")
        site.handler.default = answer(200)
        await page.press("Enter")
        await page.says("Done: 119 of 119", "dialog", within=60)
        await page.press("Escape")
        await page.says("There are no dead letters", "#list")
        assert page.troubles == []
    assert await site.database.fetchval(PROCESSED) == len(sent)
    letters = await api(site.broker, f"STREAM.INFO.{site.target.context.upper()}_DLQ")
    assert letters["state"]["messages"] == 0


async def test_a_slow_pace_is_ended_by_its_button_and_only_while_there_is_one(
    browser: Browser, site: Site
) -> None:
    site.handler.default = answer(429, retry_after="1")
    quick = {"handler_slow_after": 3, "handler_slow_failures_per_second": 0.01}
    async with unlocked(browser, site, **quick, inbox_backoff_max_seconds=600) as page:
        sent = await site.send(4)  # once it is signed in: /readyz, which a locked page asks, answers 503 then
        await page.says("The handler takes no messages: made: the handler answered 429", "#health")
        await page.click("Resume made", "#resumes")
        await page.evaluate("document.querySelector('#resumes button').append('.long_name'.repeat(20))")
        assert await fits(page, PHONE)
        site.handler.default = answer(200)
        await change(page, "the handler is fixed")
        await page.says("Done: made continues at full speed within seconds", "dialog")
        await page.press("Escape")
        await page.until("!document.querySelector('#resumes').checkVisibility()", within=30)
        await site.quiet()
        assert all("/readyz" in trouble for trouble in page.troubles), page.troubles  # 503 while it is slow
    assert await site.database.fetchval(PROCESSED) == len(sent)


async def test_an_outage_is_reported_with_its_cause_and_metrics_continue(
    browser: Browser, site: Site
) -> None:
    async with site.worker() as worker:
        await worker.ready()
        page = await browser.page(url_of(worker))
        await page.says("No event or message yet")
        site.to_handler.refuse()
        await site.send(12)
        await page.says("The handler takes no messages", "#health", within=30)
        assert re.search(r"since \d\d:\d\d, for", await page.text("#since"))
        assert await page.text("#next-steps code") == "python -m sea_mq_worker doctor"
        site.to_database.stall()
        assert await numbers_come(page)
        site.to_database.heal()
        site.to_database.refuse()
        await page.says("Waiting for PostgreSQL", "#health", within=30)
        assert await numbers_come(page)
        assert page.troubles == []
        worker.process.kill()
        await page.says("The worker does not answer", "#health")


async def numbers_come(page: Page) -> bool:
    asked = "fetch('status', {signal: AbortSignal.timeout(3000)}).then((answer) => answer.ok)"
    return bool(await page.evaluate(asked))


@asynccontextmanager
async def dev(folder: Path) -> AsyncIterator[str]:
    """Run it for the length of a block; gives the page's address as it is printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sea_mq_worker", "dev", "--folder", str(folder / "dev"), "--events", "20",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        reported = await asyncio.wait_for(process.stdout.readuntil(b"until Ctrl-C"), 60)
        [printed] = re.findall(r"http://127\.0\.0\.1:\d+/#\S+", reported.decode())
        yield printed
    finally:
        process.terminate()
        await asyncio.wait_for(process.communicate(), 30)
