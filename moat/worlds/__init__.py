"""Built-in task sources."""
