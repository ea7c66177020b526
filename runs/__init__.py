"""Hermes runs: starting them, following their events, and the prompts at which they stop."""
