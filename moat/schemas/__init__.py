"""One small module per table, so that a change of one table reruns no stage of another."""
