"""The machine: events in, effects out. No I/O, no clock, no chance, no torch."""
