"""Replays recorded decisions of reference schedulers through the core, and tells what differs."""
