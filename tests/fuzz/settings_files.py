"""Settings files that nobody would write."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sea_mq_worker.settings import CONFIG_VARIABLE, ENV_PREFIX, Settings, SettingsError, load_settings
from tests.fuzz.chance import Chance
from tests.support.site import Site
from tests.support.waiting import eventually
from tests.support.worker import WorkerProcess, running

CANARY = "canary-7f3a"
_VALUES: tuple[Any, ...] = (
    "", "x", "0", "1", "-1", 0, 1, -1, 7, 1e-9, 1e-4, 0.5, 30, 1e9, 1e300, 2**31, 2**63, 10**400, True, False,
    [], ["a"], {}, "true", "inf", "nan", "2026-01-01", "127.0.0.1", "0.0.0.0", "::", "not a host",
    f"postgresql://u:{CANARY}@h:x/d", f"nats://u:{CANARY}@h:99999", f"http://{CANARY}:{CANARY}@h:b/", "http://[::1",
    "/nonexistent/file", "/", "A/b",
    "A/b/c", ",", "200", "200,700", "pipeline", "text", "public; DROP", "x" * 5000, "\u202e", "a\nb",
)  # fmt: skip
_WORDS = ("inf", "-inf", "nan", "1979-05-27", "[[", '"unfinished', "'''", "{a=", "0x7f", "1_000")
_EXITS = frozenset({0, 1, 2, 3, 4})
_KEPT_SHARE = 0.995
_NONSENSE_SHARE = 0.3
_BROKEN_SHARE = 0.02
_START_SECONDS = 60.0
_PATIENCE_SECONDS = 2.0
_STOP_SECONDS = 40.0


def random_file(chance: Chance, usual: Mapping[str, object]) -> str:
    """Draw a TOML file: most of the ``usual`` entries, and a few that are not."""
    known = list(Settings.model_fields)
    entries = {key: _toml(value) for key, value in usual.items() if chance.random() < _KEPT_SHARE}
    for _ in range(chance.choice((0, 1, 1, 1, 2, 20))):
        key = chance.choice(known)
        nonsense = chance.random() < _NONSENSE_SHARE
        entries[key] = _toml(chance.choice(_VALUES) if nonsense else _fitting(chance, key))
        if chance.random() < _BROKEN_SHARE:
            entries[chance.choice((key, "", "a.b", "é", "contxt"))] = chance.choice(_WORDS)
    return "".join(f"{key} = {value}\n" for key, value in entries.items())


def _fitting(chance: Chance, key: str) -> object:
    """Draw something of the setting's own kind, as far off as it can be."""
    match Settings.model_fields[key].default:
        case bool() as usual:
            return not usual
        case int():
            return chance.choice((0, 1, 2, 7, 64, 1000, 2**31 - 1, 2**31, 2**63, 2**64, 10**400))
        case float():
            return chance.choice(
                (1e-300, 1e-9, 1e-4, 0.5, 1, 30, 1e4, 1e9, 1e18, 1e300, float("inf"), float("nan"))
            )
        case _:
            return chance.choice(_VALUES)


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case dict():
            return "{}"
        case _:
            text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            return f'"{text}"'


def problems_of(file: Path) -> str:
    """Read a file as the worker does; return what it is refused for."""
    os.environ[CONFIG_VARIABLE] = str(file)
    try:
        load_settings()
    except SettingsError as error:
        return str(error) or "no reason"
    finally:
        del os.environ[CONFIG_VARIABLE]
    return ""


def _is_under_way(worker: WorkerProcess) -> bool:
    return worker.process.returncode is not None or "admin_listening" in worker.written


class SettingsFiles:
    """Files that were read, and workers that were started with some of them."""

    def __init__(self, site: Site, folder: Path, chance: Chance) -> None:
        self._site = site
        self._chance = chance
        self._file = folder / "fuzzed.toml"
        self._log = folder / "fuzzed.log"
        self.counts = {"taken": 0, "refused": 0}
        self.ends: dict[int, int] = {}

    def read_one(self) -> None:
        """Draw and read a file; refused, it has to be with a clear text and without a secret."""
        self._draw(self._file)
        problems = problems_of(self._file)
        assert all(line.startswith(ENV_PREFIX) for line in problems.splitlines()), problems
        assert CANARY not in problems, problems
        self.counts["refused" if problems else "taken"] += 1

    async def start_one(self) -> None:
        """Start a worker with a drawn file: it ends with a documented code, or works until it is stopped."""
        file = self._file.with_name("started.toml")
        self._draw(file)
        target = replace(self._site.target, environment={CONFIG_VARIABLE: str(file)})
        async with running(target, self._log) as worker:
            await eventually(lambda: _is_under_way(worker), within=_START_SECONDS, what="a start or an end")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(worker.process.wait(), _PATIENCE_SECONDS)
            if worker.process.returncode is None:
                worker.send(signal.SIGTERM)
            code = await worker.ended(within=_STOP_SECONDS)
        written = self._log.read_text(errors="replace")
        by_itself = (
            code == -signal.SIGTERM and "worker_stopped" in written
        )  # it had ended when it was told to
        assert code in _EXITS or by_itself, f"exit {code} of {file.read_text()}:\n{written[-3000:]}"
        assert "Traceback" not in written, written[-3000:]
        assert CANARY not in written, written[-3000:]
        self.ends[code] = self.ends.get(code, 0) + 1

    def _draw(self, file: Path) -> None:
        given = self._site.target.environment
        usual = {key.removeprefix(ENV_PREFIX).lower(): value for key, value in given.items()}
        own = {**usual, "worker_name": "fuzzed"}
        file.write_text(random_file(self._chance, own))
