"""A stream is described and read without Spark: every message once, in order, or an error."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sea_mq_worker.dev.servers import EmbeddedNats
from sea_mq_worker.errors import ContractError, UnavailableError
from sea_mq_worker.nats.connection import api
from sea_mq_worker.nats.info import StreamInfo
from sea_mq_worker.pipeline.errors import DataLossError, PipelineError
from sea_mq_worker.pipeline.jetstream import reading, state
from sea_mq_worker.pipeline.jetstream.columns import Frame
from sea_mq_worker.pipeline.jetstream.reading import Inbox
from sea_mq_worker.pipeline.jetstream.state import message_time, stream_state
from sea_mq_worker.settings import load_settings
from tests.pipeline.jetstream_support import Published, Stream, plan, read_rows, read_seqs, rows_of
from tests.support.jetstream import connected, create_consumer
from tests.support.nats_cluster import nats_cluster
from tests.support.waiting import eventually

HEADERS = b"NATS/1.0\r\nNats-Msg-Id: 7\r\nTag: a\r\nTag:b: c \r\nEmpty:\r\nWort: \xc3\xb6\r\n\r\n"
FORGED = (
    b"NATS/1.0 404 No Messages\r\nNo colon\r\nBad: \xff\r\nNats-Stream: other\r\nNats-Sequence: 9\r\n\r\n"
)
BODY = b"\x00\xff\r\nMSG"
LOGIN = {"user": "spark", "password": "sesame"}

Meddle = Callable[[list[Frame]], Coroutine[Any, Any, None]]


@pytest.fixture(params=["pull", "direct", "leader"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Read by a consumer, by batched direct gets, and from the leader alone, a few messages at a time."""
    chosen = str(request.param)
    monkeypatch.setattr(reading, "_PULLED_ROWS_MIN", 0 if chosen == "pull" else 10**9)
    monkeypatch.setattr(state, "_REQUESTS_AT_ONCE", 3)
    if chosen == "leader":
        monkeypatch.setattr(reading._Read, "_frames", lambda *_: asyncio.sleep(0))
    return chosen


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Families of the requests for many messages."""
    families: list[str] = []
    fetch = Inbox.fetch

    async def recorded(self: Inbox, subject: str, request: dict[str, Any]) -> list[Frame]:
        families.append(subject.partition(".")[0])
        return await fetch(self, subject, request)

    monkeypatch.setattr(Inbox, "fetch", recorded)
    return families


def meddling(monkeypatch: pytest.MonkeyPatch, meddle: Meddle) -> None:
    """Let ``meddle``, in the test's own loop, see and change what is answered."""
    fetch = Inbox.fetch
    loop = asyncio.get_running_loop()

    async def meddled(self: Inbox, subject: str, request: dict[str, Any]) -> list[Frame]:
        frames = await fetch(self, subject, request)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(meddle(frames), loop))
        return frames

    monkeypatch.setattr(Inbox, "fetch", meddled)


@pytest.mark.usefixtures("way")
async def test_a_row_has_all_of_a_message(stream: Stream) -> None:
    await stream.store_raw(HEADERS, BODY)
    await stream.store(1, body=b"")
    await stream.store_raw(FORGED, b"", subject="\N{LATIN SMALL LETTER O WITH DIAERESIS}")
    await stream.store_raw(
        b"NATS/1.0\r\nNats-Msg-Id: \xff\r\nnats-msg-id: \xfe\r\n\r\n", b"", subject="\x0c'$"
    )

    info = await stream.info()
    first, second, third, fourth = await read_rows(stream.name)

    assert (first["stream"], first["created"], first["seq"]) == (stream.name, info["created"], 1)
    assert (first["subject"], first["data"]) == (f"{stream.name}.a", BODY)
    assert first["time"].isoformat()[:26] == info["state"]["first_ts"][:26]
    assert [tuple(pair.values()) for pair in first["headers"]] == [
        ("Nats-Msg-Id", "7"),
        ("Tag", "a"),
        ("Tag", "b: c"),
        ("Empty", ""),
        ("Wort", "ö"),
    ]
    assert (second["headers"], second["data"]) == ([], b"")
    assert (third["subject"], third["seq"]) == (f"{stream.name}.ö", 3)
    assert [tuple(pair.values()) for pair in third["headers"]] == [
        ("No colon", ""),
        ("Bad", r"\xff"),
        ("Nats-Stream", "other"),
        ("Nats-Sequence", "9"),
    ]
    assert (fourth["subject"], fourth["message_id"]) == (f"{stream.name}.\x0c'$", r"\xfe")
    assert (await stream.info())["state"]["consumer_count"] == 0


@pytest.mark.usefixtures("way")
async def test_what_was_deleted_is_left_out_and_nothing_else(stream: Stream) -> None:
    await stream.store(30)
    await stream.delete(1, 2, 10, 14, 15, 16, 21, 30)
    kept = [seq for seq in range(1, 31) if seq not in {1, 2, 10, 14, 15, 16, 21, 30}]
    assert await read_seqs(stream.name, rowsPerPartition=10) == kept
    assert await read_seqs(stream.name, startSeq=10, endSeq=16) == [11, 12, 13]
    await stream.store(1)
    assert await read_seqs(stream.name, startSeq=30) == [31]


@pytest.mark.usefixtures("way")
async def test_a_subject_chooses(stream: Stream) -> None:
    for subject in ("a", "b.c", "a", "b.d", "a", "b.c"):
        await stream.store(1, subject=subject)
    assert await read_seqs(stream.name, subject=f"{stream.name}.b.*", rowsPerPartition=4) == [2, 4, 6]
    assert await read_seqs(stream.name, subject=f"{stream.name}.c") == []


@pytest.mark.usefixtures("way")
async def test_an_empty_stream_has_no_rows(stream: Stream) -> None:
    assert await read_seqs(stream.name) == []
    await stream.store(2)
    await stream.purge(seq=3)
    assert await read_seqs(stream.name) == []
    assert await read_seqs(stream.name, startSeq=3) == []


@pytest.mark.usefixtures("way")
async def test_large_messages_come_in_small_batches(stream: Stream) -> None:
    await stream.store(30, body=bytes(900_000))
    reader, ranges = await plan(stream.name)
    sizes = await asyncio.to_thread(lambda: [batch.nbytes for batch in reader.read(ranges[0])])
    assert sum(sizes) > 27_000_000
    assert max(sizes) < 10_000_000


@pytest.mark.parametrize("kept", [slice(0, 6), slice(3, None), slice(0, None, 2), slice(0, 0)])
async def test_a_replica_that_lags_hides_no_message(
    stream: Stream, way: str, monkeypatch: pytest.MonkeyPatch, kept: slice
) -> None:
    if way == "leader":
        return
    await stream.store(20)
    await stream.delete(7)

    async def lag(frames: list[Frame]) -> None:
        frames[:] = frames[kept]

    meddling(monkeypatch, lag)
    assert await read_seqs(stream.name) == [seq for seq in range(1, 21) if seq != 7]


@pytest.mark.parametrize(
    "config", [{"retention": "workqueue"}, {"retention": "interest"}, {"max_consumers": 1}]
)
async def test_a_stream_that_a_consumer_would_harm_is_read_without_one(
    stream: Stream, asked: list[str], monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
) -> None:
    await stream.drop()
    await stream.create(**config)
    if config == {"retention": "interest"}:
        await create_consumer(stream.connection, stream.name, "other")
    await stream.store(20)
    monkeypatch.setattr(reading, "_PULLED_ROWS_MIN", 0)
    assert await read_seqs(stream.name) == list(range(1, 21))
    assert set(asked) == {"DIRECT"}
    assert (await stream.info())["state"]["messages"] == 20


async def test_a_stream_that_answers_no_direct_gets_is_read_by_a_consumer(
    stream: Stream, asked: list[str]
) -> None:
    await stream.drop()
    await stream.create(allow_direct=False)
    await stream.store(5)
    assert await read_seqs(stream.name) == [1, 2, 3, 4, 5]
    assert set(asked) == {"CONSUMER"}


@pytest.mark.usefixtures("way")
async def test_messages_that_go_while_they_are_read_are_an_error(stream: Stream) -> None:
    await stream.store(30)
    reader, ranges = await plan(stream.name, startSeq=1, rowsPerPartition=10)
    floating = await plan(stream.name, rowsPerPartition=10)
    lenient = await plan(stream.name, startSeq=1, rowsPerPartition=10, failOnDataLoss="false")
    await stream.purge(seq=5)
    assert [row["seq"] for row in await rows_of(*floating)] == list(range(5, 31))
    await stream.purge(seq=15)

    with pytest.raises(DataLossError, match="sequences 1 to 14 were removed"):
        await rows_of(reader, ranges)
    with pytest.raises(DataLossError, match="sequences 11 to 14 were removed"):
        await rows_of(*floating)
    assert [row["seq"] for row in await rows_of(*lenient)] == list(range(15, 31))


async def test_a_stream_that_is_made_again_while_it_is_read_is_an_error(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stream.store(3)
    reader, ranges = await plan(stream.name)
    created = (await stream.info())["created"]

    async def make_again(_frames: list[Frame]) -> None:
        await stream.drop()
        await stream.create()
        await stream.store(3)

    with monkeypatch.context() as patch:
        meddling(patch, make_again)
        with pytest.raises(DataLossError, match="deleted and created again"):
            await rows_of(reader, ranges)
    with pytest.raises(DataLossError, match="deleted and created again"):
        await plan(stream.name, created=created, failOnDataLoss="false")


async def test_what_the_stream_does_not_hold_is_not_left_out_in_silence(stream: Stream) -> None:
    await stream.store(5)
    await stream.purge(seq=3)
    with pytest.raises(DataLossError, match="sequences 1 to 2 were removed"):
        await plan(stream.name, startSeq=1)
    with pytest.raises(DataLossError, match="ends at sequence 5, before 9"):
        await plan(stream.name, endSeq=9)
    assert await read_seqs(stream.name, startSeq=1, endSeq=9, failOnDataLoss="false") == [3, 4, 5]
    with pytest.raises(ContractError, match="stream none does not exist"):
        await plan("none")


async def fill(url: str, name: str, count: int, **login: str) -> None:
    async with connected(url, **login) as connection:
        await Stream(connection, name).create()
        await Stream(connection, name).store(count)


async def test_a_read_continues_after_its_last_row_when_the_server_returns(
    tmp_path: Path, names: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_BATCH_ROWS", 10)
    monkeypatch.setattr(state, "_ROWS_MAX", 10)
    now = 0.0
    monkeypatch.setattr(state, "time", SimpleNamespace(monotonic=lambda: now, sleep=time.sleep))
    async with EmbeddedNats(tmp_path / "nats") as server:
        monkeypatch.setenv("SEA_MQ_NATS_URL", server.url)
        await fill(server.url, names, 25)
        reader, (sequences,) = await plan(names)
        batches = reader.read(sequences)
        found = (await asyncio.to_thread(next, batches)).column("seq").to_pylist()
        now = 300.0  # Spark took its time with the batch
        await server.stop()
        rest = asyncio.create_task(asyncio.to_thread(list, batches))
        await server.start()
        found += [seq for batch in await rest for seq in batch.column("seq").to_pylist()]
    assert found == list(range(1, 26)), way


async def test_a_server_that_stays_away_refuses_or_denies_ends_the_read_with_the_reason(
    tmp_path: Path, names: str, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    monkeypatch.setattr(state, "_IDLE_TIMEOUT_SECONDS", 0.0)
    monkeypatch.setattr(state, "_CONNECT_SECONDS", 1.0)
    monkeypatch.setattr(reading, "_PULLED_ROWS_MIN", 0)
    denied = {
        "pulls": ["$JS.API.DIRECT.GET.>"],
        "gets": ["$JS.API.CONSUMER.CREATE.>"],
        "half": ["$JS.API.CONSUMER.MSG.NEXT.>", "$JS.API.CONSUMER.DELETE.>"],
        "none": ["$JS.API.CONSUMER.>", "$JS.API.DIRECT.GET.>"],
    }
    users = [LOGIN | {"user": user, "permissions": {"publish": {"deny": no}}} for user, no in denied.items()]
    config = {"authorization": {"users": [LOGIN, *users]}}
    async with EmbeddedNats(tmp_path / "nats", config=config) as server:
        own_url = server.url.replace("//", "//spark:sesame@")
        monkeypatch.setenv("SEA_MQ_NATS_URL", own_url)
        await fill(server.url, names, 1, **LOGIN)
        reader, ranges = await plan(names)
        monkeypatch.setenv("SEA_MQ_NATS_URL", own_url.replace("sesame", "tahini"))
        began = time.monotonic()
        with pytest.raises(ContractError, match="refused the worker") as refused:
            await rows_of(reader, ranges)
        assert time.monotonic() - began < 30
        assert "tahini" not in str(refused.value)
        for user, ways in (("pulls", ["CONSUMER"]), ("gets", ["DIRECT"]), ("half", ["CONSUMER", "DIRECT"])):
            asked.clear()
            monkeypatch.setenv("SEA_MQ_NATS_URL", own_url.replace("spark", user))
            assert [row["seq"] for row in await rows_of(reader, ranges)] == [1]
            assert asked == ways
        monkeypatch.setenv("SEA_MQ_NATS_URL", own_url.replace("spark", "none"))
        with pytest.raises(ContractError, match=r"no permission to publish to \$JS\.API\.DIRECT\.GET"):
            await rows_of(reader, ranges)
        monkeypatch.setenv("SEA_MQ_NATS_URL", own_url)
    with pytest.raises(UnavailableError, match="no server answers") as away:
        await rows_of(reader, ranges)
    assert "sesame" not in str(away.value)


ACCOUNTS = {
    "OWNER": {
        "jetstream": "enabled",
        "users": [LOGIN | {"user": "owner"}],
        "exports": [{"service": "$JS.API.>", "response_type": "stream"}],
    },
    "READER": {"users": [LOGIN], "imports": [{"service": {"account": "OWNER", "subject": "$JS.API.>"}}]},
}


@pytest.mark.parametrize(
    ("config", "domain"), [({"jetstream": {"domain": "edge"}}, "edge"), ({"accounts": ACCOUNTS}, "")]
)
async def test_each_way_gives_the_same_rows_over_a_domain_and_over_accounts(
    tmp_path: Path, names: str, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], domain: str
) -> None:
    async with EmbeddedNats(tmp_path / "nats", config=config) as server:
        monkeypatch.setenv("SEA_MQ_NATS_URL", server.url.replace("//", "//spark:sesame@"))
        monkeypatch.setenv("SEA_MQ_NATS_JETSTREAM_DOMAIN", domain)
        await fill(server.url, names, 30, **(LOGIN | {"user": "owner"}))
        direct = await read_rows(names)
        monkeypatch.setattr(reading, "_PULLED_ROWS_MIN", 0)
        monkeypatch.setattr(reading, "_BATCH_ROWS", 7)
        assert direct == await read_rows(names)
    assert len(direct) == 30


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("stream", "a.b", "option stream: String should match pattern"),
        ("startSeq", "0", "option start_seq: Input should be greater than 0"),
        ("failOnDataLoss", "maybe", "option fail_on_data_loss: Input should be a valid boolean"),
        ("subject", "a b", "option subject: String should match"),
        ("password", "sesame", "option password: Extra inputs are not permitted"),
    ],
)
async def test_a_wrong_option_is_named(option: str, value: str, problem: str) -> None:
    with pytest.raises(PipelineError, match=problem) as wrong:
        await plan(**{"stream": "any", option: value})
    assert "sesame" not in str(wrong.value)


async def test_a_state_has_the_bounds_of_a_stream(stream: Stream) -> None:
    settings = load_settings()

    async def told() -> StreamInfo:
        return await asyncio.to_thread(stream_state, settings, stream.name)

    fresh = await told()
    await stream.store(5)
    await stream.delete(1, 3)
    full = await told()
    second, third = [await asyncio.to_thread(message_time, settings, stream.name, seq) for seq in (2, 3)]
    await stream.purge(seq=6)
    empty = await told()

    assert (fresh.first_seq, fresh.last_seq, fresh.messages) == (1, 0, 0)
    assert (full.first_seq, full.last_seq, full.messages, full.created) == (2, 5, 3, fresh.created)
    assert (full.first_time, third) == (second, None)
    assert (empty.first_seq, empty.last_seq, empty.first_time) == (6, 5, None)
    with pytest.raises(ContractError, match=f"stream {stream.name}x does not exist"):
        await asyncio.to_thread(message_time, settings, f"{stream.name}x", 1)


@pytest.mark.long
async def test_a_read_of_three_copies_survives_its_consumers_server_and_the_leader(
    tmp_path: Path, names: str, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    monkeypatch.setattr(reading, "_BATCH_ROWS", 500)
    async with nats_cluster(lambda name: tmp_path / name, room_bytes=2**28) as cluster:
        monkeypatch.setenv("SEA_MQ_NATS_URL", cluster.urls)
        async with connected(cluster.urls.split(",")) as connection:
            stream = Stream(connection, names)
            await stream.create(num_replicas=3)
            await stream.publish(Published(f"{names}.a", {}, b"%d" % number) for number in range(4000))
            await stream.delete(7, 2000)
            reader, (sequences,) = await plan(names)
            batches = reader.read(sequences)
            rows = (await asyncio.to_thread(next, batches)).to_pylist()
            listed = await api(connection, f"CONSUMER.LIST.{names}", {})
            first = cluster.nodes[cluster.named(listed["consumers"][0]["cluster"]["leader"])]
            await first.kill()
            rows += (await asyncio.to_thread(next, batches)).to_pylist()
            await first.start()
            await eventually(partial(is_complete, stream), within=60)
            await cluster.nodes[cluster.named((await stream.info())["cluster"]["leader"])].kill()
            rows += [row for batch in await asyncio.to_thread(list, batches) for row in batch.to_pylist()]
    kept = [seq for seq in range(1, 4001) if seq not in {7, 2000}]
    assert [(row["seq"], row["data"]) for row in rows] == [(seq, b"%d" % (seq - 1)) for seq in kept]
    assert "CONSUMER" in asked


async def is_complete(stream: Stream) -> bool:
    replicas = (await stream.info())["cluster"].get("replicas", [])
    return len(replicas) == 2 and all(peer["current"] for peer in replicas)
