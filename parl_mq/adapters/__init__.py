"""Replay buffers for other frameworks."""
