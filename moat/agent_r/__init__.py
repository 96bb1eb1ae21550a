"""Agent-R: self-training of an agent that learns to recover (arXiv 2501.11425)."""
