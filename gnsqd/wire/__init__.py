"""The TCP protocol V2: bytes and commands on one side, the broker on the other."""
