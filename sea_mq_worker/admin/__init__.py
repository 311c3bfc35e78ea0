"""The admin server: health, metrics, the page, and its API for operators."""
