"""What operators' commands use: no waiting, one connection each, closed when the command is done."""
