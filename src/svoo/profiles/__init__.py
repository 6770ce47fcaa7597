"""Profiles: measured tables of what every head needs, and where they are found."""
