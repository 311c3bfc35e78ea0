"""The verdict on each guarantee, as a table and as JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kit.audit import Finding
from kit.description import Description
from kit.faults import FAULTS
from kit.guarantees import Guarantee
from sea_mq_worker.cli import support as table_format

_COUNTED = ("lost", "given_up", "stuck", "copies", "disordered", "altered", "phantoms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``kept`` is None if the run did not test it; ``evidence`` lists the events that broke it."""

    guarantee: Guarantee
    promised: bool
    kept: bool | None
    evidence: str

    @property
    def failed(self) -> bool:
        """Whether a promised guarantee was broken."""
        return self.promised and self.kept is False


@dataclass(slots=True, kw_only=True)
class Result:
    """The results of a run.

    Attributes:
        findings: by fault.
        seconds: time from the end of a fault until all its events were settled.
        restarts: faults after which the relay continued only after a manual restart.
        ends: exit codes of the runs that ended by themselves, by fault.
        stops: the problem at each SIGTERM, or an empty text.
    """

    description: Description
    seed: int
    versions: Mapping[str, str]
    findings: Mapping[str, Finding] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    restarts: list[str] = field(default_factory=list)
    ends: dict[str, list[int]] = field(default_factory=dict)
    stops: Sequence[str] = ()

    def verdicts(self) -> list[Verdict]:
        """Judge each guarantee."""
        shared = {name for name in self.findings if FAULTS[name].two}
        alone = set(self.findings) - shared
        outages, late = alone - {"poison"}, {"kill-late"}
        stuck = self._count("stuck", (outages | shared))
        stuck |= {name: "continued only after a restart" for name in self.restarts if name != "poison"}
        poisoned: dict[str, object] = {}
        if "poison" in self.findings:
            finding = self.findings["poison"]
            harmed = len(finding.lost) + len(finding.given_up) + len(finding.stuck)
            if harmed:
                poisoned = {"poison": f"{harmed} others not sent"}
            elif "poison" in self.restarts:
                poisoned = {"poison": "continued only after a restart"}
        stops = {str(number): text for number, text in enumerate(self.stops, 1) if text}
        broken: dict[Guarantee, tuple[bool, Mapping[str, object]]] = {
            Guarantee.NO_LOSS: (bool(alone), self._count("lost", alone | shared)),
            Guarantee.NO_GIVING_UP: (bool(outages), self._count("given_up", outages | shared)),
            Guarantee.RECOVERS: (bool(outages), stuck),
            Guarantee.NO_PHANTOMS: (bool(alone), self._count("phantoms", alone | shared)),
            Guarantee.ONCE: (bool(alone - late), self._count("copies", alone - late)),
            Guarantee.ONCE_LATE: (bool(alone & late), self._count("copies", alone & late)),
            Guarantee.SHARED: (bool(shared), self._count("copies", shared)),
            Guarantee.ORDER: (bool(alone), self._count("disordered", alone | shared)),
            Guarantee.UNALTERED: (bool(alone), self._count("altered", alone | shared)),
            Guarantee.POISON: ("poison" in self.findings, poisoned),
            Guarantee.STOPS: (bool(self.stops), stops),
        }
        return [
            Verdict(
                guarantee=guarantee,
                promised=guarantee not in self.description.not_promised,
                kept=not found if tried else None,
                evidence="; ".join(f"{name}: {what}" for name, what in found.items()),
            )
            for guarantee, (tried, found) in broken.items()
        ]

    def _count(self, kind: str, names: set[str]) -> dict[str, object]:
        counts = {name: len(getattr(self.findings[name], kind)) for name in self.findings if name in names}
        return {name: count for name, count in counts.items() if count}

    def document(self) -> dict[str, Any]:
        """Return everything, including IDs."""
        return {
            "relay": self.description.name,
            "about": self.description.about,
            "seed": self.seed,
            "versions": dict(self.versions),
            "guarantees": [asdict(verdict) for verdict in self.verdicts()],
            "faults": {
                name: {
                    "text": FAULTS[name].text,
                    "seconds": self._seconds(name),
                    "restarted": name in self.restarts,
                    "ends": self.ends[name],
                    **asdict(finding),
                }
                for name, finding in self.findings.items()
            },
            "stops": list(self.stops),
        }

    def _seconds(self, name: str) -> float | None:
        return None if name in self.restarts else round(self.seconds[name], 1)


def table(result: Result) -> str:
    """Format the counts of each fault, and the verdicts."""
    names = (kind.replace("_", " ") for kind in _COUNTED)
    head = ["fault", "events", *names, "ended itself", "recovered in"]
    rows = [
        (
            FAULTS[name].text,
            finding.events,
            *(len(getattr(finding, kind)) or "" for kind in _COUNTED),
            len(result.ends[name]) or "",
            "not" if name in result.restarts else f"{result.seconds[name]:.1f} s",
        )
        for name, finding in result.findings.items()
    ]
    about = f"{result.description.name}: {result.description.about}".rstrip(": ")
    lines = [*table_format.table(head, rows, width=None), "", about, ""]
    for verdict in result.verdicts():
        kept = {None: "not tested", True: "kept", False: "BROKEN"}[verdict.kept]
        if not verdict.promised:
            kept = {"BROKEN": "not promised, not kept", "kept": "kept, not promised"}.get(kept, kept)
        evidence = f" ({verdict.evidence})" if verdict.evidence else ""
        lines.append(f"{kept:24}{verdict.guarantee.promise}{evidence}")
    return "\n".join(line.rstrip() for line in lines)
