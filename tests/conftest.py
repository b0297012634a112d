"""Before any test module imports torch: its OpenMP workers are told not to spin for long."""

import os

from forebay.exec.threads import prepare_environment

# Tests share cores with each other; workers that spin would make them many times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
prepare_environment()
