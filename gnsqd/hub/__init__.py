"""Tools for greenlets: signals, cooperative turns, polling."""
