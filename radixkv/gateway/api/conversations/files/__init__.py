"""Conversations as files.

imports        our own exports, ChatGPT, OASST
foreign_files  Claude, Open WebUI, LibreChat, SillyTavern
exports        JSON, Markdown
import_tree    the tree of a file's messages
"""
