"""Seeds: every request and every shuffle has its own, a hash of what it is for."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def seed_of(*parts: object) -> int:
    """A seed in [0, 2**63) that depends on `parts` alone, on every machine. Parts are compared as text."""
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def content_id(*parts: object) -> str:
    """A stable 16-character id of a row's content."""
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()[:16]


def generator(*parts: object) -> np.random.Generator:
    """A random generator that depends on `parts` alone, on every machine."""
    import numpy as np

    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "big")))
