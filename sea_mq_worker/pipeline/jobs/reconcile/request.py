"""The scope of a comparison, as the operator chose it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sea_mq_worker.settings import CONFIG_VARIABLE, ENV_PREFIX, Settings, SettingsError, load_settings


@dataclass(frozen=True, slots=True)
class Receiver:
    """A service with an inbox; ``config`` is its settings file on every node, None: this process's."""

    config: str | None
    settings: Settings


@dataclass(frozen=True, slots=True)
class Requeue:
    """Options for putting lost events back; ``actor`` and ``reason`` are for the audit.

    Attributes:
        cap: put back no event if more than this are lost, because the settings may name another broker.
        dry_run: only count.
    """

    actor: str
    reason: str
    cap: int
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileRequest:
    """Scope and output of a comparison.

    Attributes:
        lake: the lake with archive and bronze; None: only tables and streams.
        receivers: other services that consume this service's stream.
        since: compare only own events created, and other messages stored, at this time or later.
        until: compare only own events created, and other messages stored, before this time.
        grace_seconds: events published or stored within this time are never missing.
        late_seconds: a hop is late above this time; None: never.
        out: a new folder for JSON lines of all IDs with another verdict than delivered; None: no files.
        requeue: put back the events that the stream lost; None: change nothing.
    """

    lake: str | None = None
    receivers: Sequence[Receiver] = ()
    since: datetime | None = None
    until: datetime | None = None
    grace_seconds: float = 60.0
    late_seconds: float | None = None
    out: str | None = None
    requeue: Requeue | None = None


def load_receiver(path: Path) -> Receiver:
    """Load a receiver's settings.

    Raises:
        SettingsError: the file is wrong, or environment variables would override it.
    """
    fields = {f"{ENV_PREFIX}{name}".upper() for name in Settings.model_fields if name != "pipeline_lake"}
    if hiding := sorted(fields & set(os.environ)):
        raise SettingsError(
            f"--receiver {path}: {', '.join(hiding)} in the environment would override the receiver's "
            f"settings; put this service's settings into a file and set {CONFIG_VARIABLE} to its path"
        )
    config = str(path.resolve())
    return Receiver(config, load_settings(needs=("database_url", "nats_url"), config=config))
