"""Images that records name or hold.

Paths, URLs, ids, base64 and bytes come in; the location of each image goes out. `roots.py` finds
the folders that relative paths start from, `templates.py` the paths of images that ids name.
Another folder to search belongs in `roots.py`.
"""
