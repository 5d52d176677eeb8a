"""The routes: one file for each way in which a system takes kernel parameters."""
