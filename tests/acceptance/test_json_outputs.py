"""The output of commands with `--json` fits docs/reference/cli.schema.json; `World.run` compares it."""

from sea_mq_worker.cli.outputs import OUTPUTS
from tests.support.operators import WHY, World
from tests.support.rows import add_event, add_message

NEED_MORE = {"doctor", "dlq redrive"}
"""Tried where there is a handler."""


async def test_every_command_prints_what_is_documented(world: World) -> None:
    await world.streams()
    pending, dead = await add_event(world.pool), await add_event(world.pool, "DEAD", error="too large")
    lost, letter = await add_message(world.pool), await add_message(world.pool, dead=True)
    seq = str(await world.dead_letter(letter))
    settings = {"SEA_MQ_STREAM_REPLICAS": "1", "SEA_MQ_STREAM_MAX_BYTES": "1000000", "SEA_MQ_CONSUMERS": ""}
    named = {
        "where": (str(letter),),
        "outbox show": (str(dead),),
        "inbox show": (str(lost),),
        "dlq show": (seq,),
    }
    changes = {
        "outbox replay": (str(dead), *WHY),
        "outbox mark-dead": (str(pending), *WHY),
        "outbox discard": (str(pending), *WHY),
        "inbox close": (str(lost), *WHY),
        "inbox resume": ("--type", "vibe_created", *WHY),
        "dlq purge": (seq, *WHY),
        "prune": ("--before", "30d", *WHY),
        "audit": (),
    }
    assert (await world.run("prune", "--before", "30d", "--dry-run", *WHY, "--json")).code == 0
    assert (await world.run("dlq", "purge", "--all", "--dry-run", *WHY, "--json")).json["matched"] == 1
    looks = {name: named.get(name, ()) for name in OUTPUTS if name not in {*changes, *NEED_MORE}}
    for name, given in (looks | changes).items():
        answer = await world.run(*name.split(), *given, "--json", **settings)
        assert answer.json != [], name
