"""The journal of a topic: each message once, and what its queues have done with it."""
