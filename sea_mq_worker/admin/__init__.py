"""The admin server: health, metrics, the page, and the operator API."""
