"""`svoo ui`: a page and a video API over one pipeline, one video at a time."""
