"""Parts of a decode step's time: `run` measures, `stopwatch` counts each part of the engine's rounds."""
