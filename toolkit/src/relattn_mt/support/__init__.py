"""Common parts of all packages: errors, files, locks, the console, the processor. Imports nothing of ours."""
