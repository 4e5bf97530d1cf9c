"""One algorithm a file; its settings stand beside it in a torch-free file."""
