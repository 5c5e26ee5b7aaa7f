"""What gnsqadmin and the Spark side share: a client of protocol V2, and a reader of data directories. No gevent."""
