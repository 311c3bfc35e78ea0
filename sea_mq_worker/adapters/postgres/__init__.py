"""PostgreSQL: outbox, inbox, operator's actions and wake-up over asyncpg."""
