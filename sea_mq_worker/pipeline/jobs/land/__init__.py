"""The job ``land``: copy streams into the lake."""
