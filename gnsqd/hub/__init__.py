"""Tools for greenlets: signals, cooperative turns."""
