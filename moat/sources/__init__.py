"""Importers: a file or a hub data set in its publisher's own format, to records. A module per format."""
