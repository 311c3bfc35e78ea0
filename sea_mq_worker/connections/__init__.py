"""Connections made from settings; a module for each server, so that nothing loads the drivers of another."""
