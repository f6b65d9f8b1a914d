"""The website, generated from docstrings, `Args`, scripts, reports, claims, notebooks and docs."""
