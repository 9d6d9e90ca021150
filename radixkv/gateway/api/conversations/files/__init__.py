"""Conversations as files.

imports        our own exports, ChatGPT, OASST
foreign_files  Claude, Open WebUI, LibreChat, SillyTavern
exports        JSON, Markdown
planting       a file's tree into the database
"""
