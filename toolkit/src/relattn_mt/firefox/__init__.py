"""Firefox's models by name: Mozilla's lists of them, and the cache of this user."""
