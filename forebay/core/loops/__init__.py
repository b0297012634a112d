"""One planning loop per family of behaviour, each a screen long, over the same rooms."""
