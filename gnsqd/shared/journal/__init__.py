"""What is in the journal of a topic, for those who write it, and for those who only read it."""
