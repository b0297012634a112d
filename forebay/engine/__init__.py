"""Drives the machine: threads and time live here, tensors do not."""
