"""Disk queues in the format of go-diskqueue, with their due times."""
