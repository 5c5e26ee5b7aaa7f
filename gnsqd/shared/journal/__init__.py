"""The content of a topic's journal, for the daemon, which writes it, and for programs that only read it."""
