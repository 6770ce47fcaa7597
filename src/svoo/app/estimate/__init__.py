"""What a video will take, modelled before anything runs."""
