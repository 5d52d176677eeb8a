"""Experts of MoE models: whether their use is counted, and how they are read from disk."""
