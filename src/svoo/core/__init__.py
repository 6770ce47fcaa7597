"""The mathematics: knows neither models nor files."""
