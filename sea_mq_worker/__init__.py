"""A transactional outbox and inbox worker for PostgreSQL and NATS JetStream."""
