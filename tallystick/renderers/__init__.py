"""Reports in every form but the terminal's: each a pure function of the runner's read models, as pieces of text."""
