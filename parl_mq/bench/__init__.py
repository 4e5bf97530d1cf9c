"""What `parl-mq bench` runs."""
