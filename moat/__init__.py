"""MOAT: joint alignment tuning of a planner and a grounder."""
