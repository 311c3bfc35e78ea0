"""In-memory twins of the real adapters: the same rules without servers, for tests and simulation."""
