"""NATS JetStream on nats-py: a connection a side, acknowledgements read in bulk, own pulls."""
