"""Templates of the systemd units that `parl-mq services` writes; installed as parl_mq.systemd.

`@name@` is filled in, and a line that is `@name@` alone may become several or none. A line that begins with `system|`
or `user|` is for that service manager alone: the machine's, or a user's own, which cannot put services into namespaces.
`parl_mq/services/units.py` does this.
"""
