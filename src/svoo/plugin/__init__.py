"""The plug-in for diffusers: makes the video self-attention of a pipeline sparse, and undoes
it."""
