"""The jobs, each a function of a Spark session, the worker's settings and the options of a command."""
