"""What is decided: frozen data and pure functions, no IO and no drivers."""
