"""The loops: they decide with the domain and act through the ports."""
