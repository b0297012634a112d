"""The command line: parsing and printing; what a command needs is loaded when it runs."""
