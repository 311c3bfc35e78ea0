"""The command ``dev``: run real servers, the worker, a sample handler and traffic in both directions."""
