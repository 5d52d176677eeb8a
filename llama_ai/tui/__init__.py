"""The monitor's screens. Textual is imported here and nowhere else."""
