"""Training: the loop, the paper's schedule, a run's directory and checkpoints, and the average of the last of them."""
