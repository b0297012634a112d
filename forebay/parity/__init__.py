"""Replays recorded decisions of reference schedulers and names the first one that differs."""
