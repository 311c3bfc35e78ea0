"""Connections to PostgreSQL, named statements, migrations, sessions."""
