"""The journal of a topic: each message once, what its queues have done with it, and the queues on top of it."""
