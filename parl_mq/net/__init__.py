"""Channels that move frames: sends, never decodes."""
