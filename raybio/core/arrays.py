"""Types of arrays that annotations share."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.integer[Any]]
Int64s = NDArray[np.int64]
Bools = NDArray[np.bool_]
