"""Array types that the graph modules share."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer[Any]]
Positions = NDArray[np.int64]
