"""The learner's update loop without its sockets, and checkpoints."""
