"""The queues of topics and channels: messages in memory, and behind that on disk, in a journal or nowhere."""
