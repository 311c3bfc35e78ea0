"""In-memory fakes of the ports: the rules of the real adapters without servers."""
