"""The claims' names by kind, and the names of the claims with a verdict."""

from claims import court

OF_KIND = {kind: [name for name in court.names() if kind == court.load(name).KIND] for kind in court.KINDS}
JUDGED = [name for name in court.names() if court.record(name)]  # a claim by runs may still wait for its runs
