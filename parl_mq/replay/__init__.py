"""The replay engine: ring, sum tree, tables, limiter; pure and synchronous, without torch or zmq."""
