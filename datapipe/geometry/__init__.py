"""Where the pixels of an image go: sizes, grids and crops, by an image's width and height alone."""
