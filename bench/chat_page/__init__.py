"""Speed of the chat page: `run` measures, `content` makes the conversations shown; and `pictures`, the pages for the README."""
