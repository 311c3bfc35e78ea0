"""The outside world behind the ports; drivers' errors are translated here and nowhere else."""
