"""System tests, tests of the whole tree, and what all tests use (`support`)."""
