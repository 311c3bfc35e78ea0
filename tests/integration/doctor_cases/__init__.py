"""Causes of each of doctor's findings."""

from tests.integration.doctor_cases import broker, database, others
from tests.integration.doctor_cases.registry import CASES, CASES_OF_TABLES, VARIANT, Provoke

__all__ = ["CASES", "CASES_OF_TABLES", "VARIANT", "Provoke", "broker", "database", "others"]
