"""The environments that agents act in, behind one interface: `moat.environments.base`."""
