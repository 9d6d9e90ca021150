"""A branching chat in the terminal: the conversation as a tree of turns, and the commands to walk it."""
