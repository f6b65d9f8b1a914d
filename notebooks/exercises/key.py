"""The solution of the silent bugs. It is not in the handout."""

SHOWN = {
    "A": "shaped-filter",
    "B": "healthy",
    "C": "k1-in-loss",
    "D": "bf16-weights",
    "E": "scaled-loss",
    "F": "kl-sign",
    "G": "top-p",
    "H": "healthy",
    "I": "inverted-clip",
    "J": "length-normalized",
}
# Mechanism and deciding test of each, by their short names in silent_bugs.py.
KEY = {
    "healthy": ("M8", "T5"),
    "scaled-loss": ("M1", "T9"),
    "bf16-weights": ("M5", "T7"),
    "inverted-clip": ("M9", "T4"),
    "k1-in-loss": ("M10", "T2"),
    "kl-sign": ("M11", "T12"),
    "length-normalized": ("M4", "T6"),
    "shaped-filter": ("M3", "T8"),
    "top-p": ("M7", "T1"),
}
