"""The real tools that actions call, a module per domain. Nothing here evaluates text that a model wrote."""
