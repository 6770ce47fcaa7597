"""How the embedded model is trained: a drawn world, an autoencoder, a transformer."""
