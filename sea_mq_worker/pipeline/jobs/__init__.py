"""The jobs: each one function, which takes a Spark session and the settings."""
