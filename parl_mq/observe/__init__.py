"""What people look at: progress, summaries, plots."""
