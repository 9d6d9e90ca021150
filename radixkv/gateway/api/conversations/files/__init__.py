"""Conversations as files.

imports        our own exports, ChatGPT, OASST
foreign_files  Claude, Open WebUI, LibreChat, SillyTavern
exports        JSON, Markdown
planting       the tree of a file's messages
"""
