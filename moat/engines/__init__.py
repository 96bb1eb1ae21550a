"""Engines: what generates and scores."""
