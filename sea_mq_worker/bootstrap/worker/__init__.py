"""The worker's process: its two sides, what it tells of itself, and how all of it starts and stops."""
