"""Training: the task Lightning runs, the paper's schedule, checkpoints, and the average of the last of them."""
