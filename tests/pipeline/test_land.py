"""Landing brings each message into bronze once, each event into silver once, and counts them in gold."""

from dataclasses import replace

from tests.pipeline.jetstream_support import Published, Stream
from tests.pipeline.landing import LandedLake, copy_of, event, events_of, lake

__all__ = ["lake"]


async def test_each_message_is_in_bronze_once_and_each_event_in_silver_once(
    lake: LandedLake, stream: Stream
) -> None:
    odd = [
        Published(f"{stream.name}.other", {"ce-type": "t", "ce-time": "yesterday"}, b"\xff"),
        Published(f"{stream.name}.other", {"ce-time": "0001-01-01T00:00:00Z"}, b""),
    ]
    events = events_of(stream.name, 300)
    copies = [copy_of(each) for each in events[::10]]
    changed = replace(copy_of(events[4]), body=b'{"number": 4}')
    await stream.publish([*events, *odd, *copies, changed])
    await stream.delete(1, 7, 50, 310)
    progress: list[str] = []

    result = await lake.land(stream.name, batch_rows=200, on_progress=progress.append)

    stored = dict(enumerate([*events, *odd, *copies, changed], start=1))
    for seq in (1, 7, 50, 310):
        del stored[seq]
    landed = lake.rows("bronze")
    assert {row["seq"]: (row["subject"], row["data"]) for row in landed} == {
        seq: (message.subject, message.body) for seq, message in stored.items()
    }
    assert len(landed) == len(stored) == result.rows
    assert [text.partition(" after")[0] for text in progress] == [
        f"land {stream.name}: {count} messages" for count in (198, 131)
    ]
    # The first event was deleted, so that its copy is the first to be landed.
    assert lake.seqs("silver", stream.name) == [seq for seq in stored if seq <= 303]
    assert (result.events, result.repeats, result.differing) == (300, 29, 1)
    lake.assert_counted()
    versions = lake.versions()

    again = await lake.land(stream.name)

    assert (again.rows, again.events, lake.versions()) == (0, 0, versions)
    await stream.publish([copy_of(events[5]), event(stream.name, 300)])
    later = await lake.land(stream.name)
    assert (later.rows, later.events, later.repeats, later.differing) == (2, 1, 1, 0)
    assert later.streams[0].left == 0
    lake.assert_counted()
