"""Network blocks and versioned weights."""
