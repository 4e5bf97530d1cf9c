"""The examples are modules that stand beside the settings which name them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "docs" / "examples"))
