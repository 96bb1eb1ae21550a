"""The checks of `moat verify`, by what they look at; `moat/verify.py` lists them in order."""
