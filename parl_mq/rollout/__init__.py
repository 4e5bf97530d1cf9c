"""Environments, exploration and the assembly of steps into fragments."""
