"""What the page shows, kept in a fixed amount of memory and at hand whatever hangs."""
