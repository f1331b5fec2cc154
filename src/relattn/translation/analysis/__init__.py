"""Analyze a trained model: its attention, its predictions by position, its tables."""
