"""What a trained model does: its attention, its predictions by position, its tables."""
