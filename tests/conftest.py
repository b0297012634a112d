"""Before any test module imports torch: its OpenMP workers are told not to spin for long."""

from forebay.exec.threads import prepare_environment

# As `LLM` does in a process of its own. Otherwise two busy cores make the tests many times slower.
prepare_environment()
