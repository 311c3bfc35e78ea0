"""What the loops need from the world (SDS-047 section 7); every docstring is a contract.

Each port has a real adapter and an in-memory fake, and ``tests/contract`` runs one suite over both.
"""
