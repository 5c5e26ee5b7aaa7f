"""What `gnsqadmin doctor` knows: rules that look at what was seen of a cluster, each of which says what is wrong, how
that shows, and what mends it."""
