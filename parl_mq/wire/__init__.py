"""Messages and their encoding: decodes, never sends."""
