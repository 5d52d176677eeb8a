"""Starts the engine, watches it, restarts it, stops it, and tells others about it."""
