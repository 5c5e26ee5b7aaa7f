"""The rules of `gnsqadmin doctor`, which examine snapshots of a cluster and return problems, evidence and remedies."""
