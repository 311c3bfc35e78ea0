"""Interfaces of the loops to database, broker and handler (SDS-047 section 7); each docstring is a contract.

Each port has a real adapter and an in-memory fake, and ``tests/contract`` runs one suite over both.
"""
