"""Measurements of the portal as it is served. Only ratios within one run: they mean the same on a slow machine."""
