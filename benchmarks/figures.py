"""The figures in docs/proof/benchmarks, and a picture of each set of them; there need not be all."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.comparison import KEYED, STEADY, UNKEYED
from benchmarks.pictures import (
    costs_beside_floors,
    costs_by_rate,
    costs_of_relays,
    latencies_of_relays,
    latency,
    rates_and_costs,
    rates_beside_floors,
    rates_of_relays,
    takeovers,
)
from benchmarks.pipeline_figures import growth
from benchmarks.report import WORKER, at_share, by_subject

FOLDER = Path(__file__).parents[1] / "docs" / "proof" / "benchmarks"
SWEEP = "steady rate sweep"
OWN_FILES = ("worker", "sweep", "conditions", "workers", "backlogs", "inboxes", "long", "churn", "looks")
PEER_FILES = ("peers", "peers-steady")
TAKEOVER_FILES = ("takeover",)
PIPELINE_FILES = ("pipeline",)
_DRAINS = ("drain, no keys", "drain, 10 to a key")
_INBOXES = ("inbox, FastAPI", "inbox, bare handler", "inbox, FastStream")


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture of figures; without figures there is none."""

    caption: str
    figures: Callable[[], Any]
    draw: Callable[[Any], str]

    def drawn(self) -> str:
        """Draw the present figures."""
        return self.draw(self.figures())


def reports(names: Iterable[str]) -> list[Any]:
    """Return the reports in the files of these names, of those that are there."""
    files = [FOLDER / f"{name}.json" for name in names]
    return [json.loads(file.read_text()) for file in files if file.exists()]


def _sizes_of_the_pipeline() -> Mapping[str, Any]:
    return {size: found for report in reports(PIPELINE_FILES) for size, found in report["sizes"].items()}


def _workloads(*names: str) -> dict[str, Any]:
    every = {name: found for report in reports(OWN_FILES) for name, found in report["workloads"].items()}
    return {name: every[name] for name in names if name in every}


def _swept_rates() -> Mapping[str, Any]:
    found = _workloads(SWEEP)
    return by_subject(found[SWEEP]["median"][WORKER]["more"]) if found else {}


def _relays(*workloads: str) -> Mapping[str, Any]:
    every = {name: lanes for report in reports(PEER_FILES) for name, lanes in report["relays"].items()}
    return {name: every[name] for name in workloads if name in every}


def seconds_after_kills(report: Mapping[str, Any]) -> dict[str, Mapping[str, Mapping[str, float]]]:
    """Return number and percentiles of the seconds after kills, by way and by what is measured."""
    return {
        way: {
            name: {"kills": len(s), "p50": at_share(s, 0.5), "p99": at_share(s, 0.99), "worst": max(s)}
            for name, s in kills["seconds"].items()
            if s
        }
        for way, kills in report["ways"].items()
    }


def _published_kills() -> Mapping[str, Any]:
    return {way: s for report in reports(TAKEOVER_FILES) for way, s in seconds_after_kills(report).items()}


OWN_PICTURES = {
    "cpu": Picture(
        caption="Processor time of worker, PostgreSQL and nats-server beside the floors' sum",
        figures=partial(_workloads, *_DRAINS),
        draw=costs_beside_floors,
    ),
    "rates": Picture(
        caption="The worker's rates beside their floors",
        figures=partial(_workloads, *_DRAINS, *_INBOXES),
        draw=rates_beside_floors,
    ),
    "latency": Picture(
        caption="From the commit of an event to its place in the stream",
        figures=partial(_workloads, "steady rate"),
        draw=latency,
    ),
    "sweep": Picture(
        caption="Processor time of an event at each rate", figures=_swept_rates, draw=costs_by_rate
    ),
    "conditions": Picture(
        caption="Rate and processor time under other conditions",
        figures=partial(_workloads, "drain, conditions"),
        draw=partial(rates_and_costs, "The same drain under other conditions", "as shipped"),
    ),
    "workers": Picture(
        caption="Rate and processor time by the number of workers",
        figures=partial(_workloads, "workers, no keys", "workers, 10 to a key"),
        draw=partial(rates_and_costs, "One backlog, several workers", "1 worker"),
    ),
    "backlogs": Picture(
        caption="Rate and processor time by the size of the backlog",
        figures=partial(_workloads, "backlogs, no keys", "backlogs, 10 to a key"),
        draw=partial(rates_and_costs, "Backlogs by their size", "{count:,} events"),
    ),
}
PEER_PICTURES = {
    "peers": Picture(
        caption="Events a second of every relay",
        figures=partial(_relays, UNKEYED, KEYED),
        draw=rates_of_relays,
    ),
    "peers-cpu": Picture(
        caption="Processor time of every relay and its servers",
        figures=partial(_relays, UNKEYED, KEYED),
        draw=costs_of_relays,
    ),
    "peers-latency": Picture(
        caption="Latency of every relay at a steady rate",
        figures=partial(_relays, STEADY),
        draw=latencies_of_relays,
    ),
    "peers-steady-cpu": Picture(
        caption="Processor time of every relay and its servers at a steady rate",
        figures=partial(_relays, STEADY),
        draw=costs_of_relays,
    ),
}
TAKEOVER_PICTURES = {
    "takeover": Picture(
        caption="Seconds after a kill until work moves again", figures=_published_kills, draw=takeovers
    ),
}
PIPELINE_PICTURES = {
    "pipeline": Picture(
        caption="Rate and processor time of the pipeline's jobs by the number of rows",
        figures=_sizes_of_the_pipeline,
        draw=growth,
    ),
}


def pictures() -> Mapping[str, Callable[[], str]]:
    """Return a function for each picture that has figures, by the name of its file."""
    every = {**OWN_PICTURES, **PEER_PICTURES, **TAKEOVER_PICTURES, **PIPELINE_PICTURES}
    return {name: one.drawn for name, one in every.items() if one.figures()}


def images(pictures: Mapping[str, Picture]) -> Iterator[str]:
    """Return the lines that show the pictures which have figures."""
    for name, picture in pictures.items():
        if picture.figures():
            yield f"![{picture.caption}](benchmarks/{name}.svg)"
            yield ""
