"""What the daemon tells about itself: statistics, and the forms they are read in."""
