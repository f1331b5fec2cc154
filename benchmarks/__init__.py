"""Measurements that say under what conditions they were made: `python -m benchmarks.NAME`."""
