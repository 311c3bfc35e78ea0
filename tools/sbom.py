"""Print the bill of materials of the locked worker, as CycloneDX; ``requirements/refresh`` stores it.

The wheel has it in ``.dist-info/sboms`` (PEP 770).
"""

import re
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

_LOCK = Path(__file__).parents[1] / "requirements" / "run.lock"
_PIN = re.compile(r"^([a-z0-9.-]+)==([^ ]+)", re.MULTILINE)
_SAME_EACH_TIME = datetime.fromtimestamp(0, UTC)


def bill_of_materials() -> str:
    """Return the packages of ``requirements/run.lock`` and their versions."""
    lock = _LOCK.read_text(encoding="utf-8")
    worker = _component(ComponentType.APPLICATION, "sea-mq-worker", None)
    packages = [_component(ComponentType.LIBRARY, name, version) for name, version in _PIN.findall(lock)]
    bom = Bom(
        components=packages,
        metadata=BomMetaData(timestamp=_SAME_EACH_TIME, component=worker),
        serial_number=uuid.uuid5(uuid.NAMESPACE_OID, lock),
    )
    bom.register_dependency(worker, packages)
    return make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2) + "\n"


def _component(kind: ComponentType, name: str, version: str | None) -> Component:
    purl = PackageURL("pypi", name=name, version=version)
    return Component(type=kind, name=name, version=version, purl=purl, bom_ref=str(purl))


if __name__ == "__main__":
    sys.stdout.write(bill_of_materials())
