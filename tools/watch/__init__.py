"""`python -m tools.watch`: a page that shows runs while they go on."""
