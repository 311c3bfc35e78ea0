"""HTTP: the client of the service's handler, and the worker's own admin page."""
