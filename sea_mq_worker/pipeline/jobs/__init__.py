"""The jobs, each a function of a Spark session, the worker's settings and what the operator asks for."""
