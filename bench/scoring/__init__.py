"""Multiple choice under one prefix: `run` lets `systems` take turns."""
