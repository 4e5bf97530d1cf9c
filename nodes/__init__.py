"""One thin entry point a role; installed as parl_mq.nodes."""
