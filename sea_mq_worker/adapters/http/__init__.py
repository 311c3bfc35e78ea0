"""HTTP client of the service handler."""
