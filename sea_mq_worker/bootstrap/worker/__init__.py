"""The worker's process: builds both sides, telemetry and the admin server, and starts and stops them."""
