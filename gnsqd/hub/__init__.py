"""Tools for greenlets: signals, cooperative turns, threads, polling."""
