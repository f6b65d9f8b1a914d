"""`python -m tools.watch`: a page of runs while they go on."""
