"""The data on disk: queues, nsqd.dat and the lock, in the formats of the real nsqd (NSQD-COMPAT section 4)."""
