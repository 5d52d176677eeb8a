"""What the machine and the engine are doing now: read, never changed."""
