"""The command parl-mq."""
