"""``streams apply`` and ``streams check``: a context changes what is its own, and says what it did."""

from pathlib import Path
from typing import Any

import pytest

from sea_mq_worker.nats.connection import api
from tests.support.documents import commands
from tests.support.jetstream import consumer_info, create_stream, shipped_files
from tests.support.operators import World
from tests.support.programs import own_programs


@pytest.fixture
def world(world: World, tmp_path: Path) -> World:
    world.env |= {
        "SEA_MQ_STREAMS_FOLDER": str(shipped_files(tmp_path, upstream=f"{world.name}v")),
        "SEA_MQ_CONSUMERS": f"{upstream(world)}/{durable(world)}",
        "SEA_MQ_STREAM_REPLICAS": "1",
        "SEA_MQ_STREAM_MAX_BYTES": str(2**20),
    }
    return world


def upstream(world: World) -> str:
    return f"{world.name.upper()}V_EVENTS"


def durable(world: World) -> str:
    return f"{world.name}__from_{world.name}v"


async def config(world: World, stream: str) -> dict[str, Any]:
    return dict((await api(world.connection, f"STREAM.INFO.{stream}"))["config"])


async def their_stream(world: World) -> dict[str, Any]:
    """Let another context make its stream, other than the definition here says."""
    await create_stream(world.connection, upstream(world), f"{world.name}v.event.>", max_bytes=2**22)
    return await config(world, upstream(world))


async def test_the_stream_of_another_context_is_left_as_it_is(world: World) -> None:
    theirs = await their_stream(world)
    applied = await world.run("streams", "apply")
    assert (applied.code, applied.out.splitlines()[-1]) == (0, "as defined")
    assert await config(world, upstream(world)) == theirs
    assert (await consumer_info(world.connection, upstream(world), durable(world)))["name"] == durable(world)
    assert (await world.run("streams", "check")).code == 0
    assert f"{world.name.upper()}_EVENTS" in applied.out


async def test_the_stream_of_another_context_is_changed_where_it_is_named(world: World) -> None:
    await their_stream(world)
    assert (await world.run("streams", "check", "--stream", upstream(world))).code == 1
    applied = await world.run("streams", "apply", "--stream", upstream(world))
    assert applied.code == 0
    assert f"max_bytes: {2**22} -> {2**20}" in applied.out
    assert f"{world.name.upper()}_EVENTS" not in applied.out.replace(upstream(world), "")
    unknown = await world.run("streams", "apply", "--stream", "NOBODYS")
    assert (unknown.code, "NOBODYS: not defined" in unknown.err) == (3, True)


async def test_a_dry_run_reports_each_difference_and_changes_nothing(world: World) -> None:
    theirs = await their_stream(world)
    own = f"{world.name.upper()}_EVENTS"
    await create_stream(world.connection, own, f"{world.name}.event.>", max_bytes=2**22)
    reported = await world.run("streams", "apply", "--dry-run")
    assert reported.code == 0
    assert f"would be updated stream {own}" in reported.out
    assert f"max_bytes: {2**22} -> {2**20}" in reported.out
    assert f"would be created consumer {durable(world)}" in reported.out
    assert (await config(world, own))["max_bytes"] == 2**22
    assert await config(world, upstream(world)) == theirs
    as_json = (await world.run("streams", "apply", "--dry-run", "--json")).json
    assert len(as_json["changes"]) == 5


async def test_a_consumer_waits_for_the_stream_of_another_context(world: World) -> None:
    waits = f"consumer {durable(world)} of stream {upstream(world)}: it is missing, and waits for its stream"
    there = f"`streams apply --stream {upstream(world)}`"
    dry = await world.run("streams", "apply", "--dry-run")
    assert (dry.code, waits in dry.out, f"created consumer {durable(world)}" in dry.out) == (0, True, False)
    applied = await world.run("streams", "apply")
    assert (applied.code, waits in applied.out, there in applied.out) == (0, True, True)
    for name in ("EVENTS", "DLQ", "ADVISORIES"):
        assert f"created stream {world.name.upper()}_{name}" in applied.out
    check = await world.run("streams", "check")
    assert check.code == 1
    assert check.out.splitlines() == [
        next(line for line in applied.out.splitlines() if waits in line),
        "apply again when what is waited for is there",
    ]
    await their_stream(world)
    for command in ("apply", "check"):
        again = await world.run("streams", command)
        assert (again.code, again.out.splitlines()[-1]) == (0, "as defined")


@pytest.mark.parametrize("options", [(), ("--json",)])
async def test_streams_created_before_a_refusal_are_reported(world: World, options: tuple[str, ...]) -> None:
    """Another stream takes the subjects that the other context's stream is to have."""
    await create_stream(world.connection, f"{world.name.upper()}W", f"{world.name}v.event.>")
    own = (f"{world.name.upper()}_{name}" for name in ("EVENTS", "DLQ", "ADVISORIES"))
    named = [word for stream in (*own, upstream(world)) for word in ("--stream", stream)]
    refused = await world.run("streams", "apply", *named, *options)
    assert refused.code == 3
    assert "give each context its own" in refused.err
    made = [change["name"] for change in refused.json["changes"]] if options else refused.out
    for name in ("EVENTS", "DLQ", "ADVISORIES"):
        label = f"stream {world.name.upper()}_{name}"
        assert label in made if options else f"created {label}" in made


async def test_consumers_have_streams_and_durables_without_files(world: World) -> None:
    del world.env["SEA_MQ_STREAMS_FOLDER"]
    own = world.name.upper()
    both = {f"{own}{letter}_EVENTS": f"{world.name}__from_{world.name}{letter.lower()}" for letter in "VW"}
    world.env["SEA_MQ_CONSUMERS"] = ",".join("/".join(consumer) for consumer in both.items())
    theirs = [word for stream in both for word in ("--stream", stream)]
    made = [await world.run("streams", *words) for words in (["apply", *theirs], ["apply"], ["check"])]
    assert [answer.code for answer in made] == [0, 0, 0], made
    advisories = (await config(world, f"{own}_ADVISORIES"))["subjects"]
    assert [tuple(subject.split(".")[-2:]) for subject in advisories] == [*both.items()]
    taken = (await consumer_info(world.connection, f"{own}W_EVENTS", both[f"{own}W_EVENTS"]))["config"]
    assert taken["filter_subject"] == f"{world.name}w.event.>"


async def test_exported_definitions_are_taken_as_files(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "export").mkdir()
    monkeypatch.chdir(tmp_path / "export")
    del world.env["SEA_MQ_STREAMS_FOLDER"]
    [(_, words)] = own_programs(commands("docs/how-to/streams.md", "Other values")[0].text)
    exported = await world.run(*words)
    assert len(exported.out.splitlines()) == 6, exported
    by_files = {"SEA_MQ_STREAMS_FOLDER": words[-1]}
    assert (await world.run("streams", "apply", "--stream", upstream(world), **by_files)).code == 0
    assert (await world.run("streams", "apply", **by_files)).code == 0
    assert (await world.run("streams", "check")).out == "as defined\n"
    again = await world.run(*words)
    assert (again.code, "has definitions already" in again.err) == (3, True)
    new = {**by_files, "SEA_MQ_CONSUMERS": f"{world.env['SEA_MQ_CONSUMERS']},{upstream(world)}/second"}
    for command in ("check", "apply"):
        lacking = await world.run("streams", command, **new)
        assert (lacking.code, f"consumers/{upstream(world)}.second.json" in lacking.out) == (1, True), lacking
