"""gnsqd: the NSQ daemon, nsqd v1.3.0 to everything that talks to it, written in Python on gevent."""
