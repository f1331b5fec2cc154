"""The command line: one file per command, each a typed function whose signature gives the flags."""
