"""nsqlookupd: which nsqd has which topics and channels (NSQD-COMPAT 6.2 and 6.3)."""
