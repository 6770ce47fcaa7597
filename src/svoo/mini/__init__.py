"""The embedded model: a small Wan trained on drawn scenes."""
