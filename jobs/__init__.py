"""Scheduled jobs of a Hermes server. Their contracts are listed; their operations are not offered yet."""
