"""`python -m parl_mq` is the command `parl-mq`."""

from parl_mq.cli import main

main()
