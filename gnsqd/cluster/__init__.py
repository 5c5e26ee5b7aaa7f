"""Connections to other daemons: nsqlookupd and auth servers."""
