"""The pages that show runs, one file per page; each asks, and changes things only through `operations` and `definitions`."""
