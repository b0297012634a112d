"""`python -m forebay` is the command `forebay`."""

from forebay.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
