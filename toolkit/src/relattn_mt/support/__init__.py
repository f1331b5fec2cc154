"""What all packages use: errors that users see, files, locks, the console, the processor. Imports nothing of ours."""
