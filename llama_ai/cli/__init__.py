"""The command line: one module a command; ``app.py`` registers them."""
