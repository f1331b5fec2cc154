"""The operator inside models that other packages build."""
