"""What connects this daemon with others: nsqlookupd."""
