"""The pages that show runs, one file per page; they change things only through `operations` and `definitions`."""
