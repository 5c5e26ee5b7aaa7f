"""What connects this daemon with others: nsqlookupd and auth servers."""
