"""Tests which guarantees a relay, or a deployment of this worker, keeps under faults."""
