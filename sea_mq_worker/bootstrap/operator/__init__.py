"""What operators' commands and the page use: no waiting, one connection each, closed after the command."""
