"""Integrations that let models from other packages compute their attention with relattn."""
