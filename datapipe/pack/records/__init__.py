"""Records out of the files that hold them, and what readers of records share."""
