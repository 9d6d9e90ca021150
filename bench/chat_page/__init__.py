"""Speed of the chat page: `run` measures, `content` is what the page shows."""
