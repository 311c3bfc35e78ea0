"""What ``dev`` shows: real servers, the worker, a sample handler and traffic in both contexts."""
