"""The `gnsqadmin` command: inspects and manages the nsqds and gnsqds of a cluster, and their data directories.

It runs without gevent: of gnsqd it imports only the modules that need none (CONTRIBUTING.md, "Layers").
"""
