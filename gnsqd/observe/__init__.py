"""Statistics of the daemon, and their output formats."""
