"""Data of a training run: encoded text, its mixture, augmentation and batches."""
