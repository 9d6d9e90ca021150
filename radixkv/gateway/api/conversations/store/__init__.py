"""Conversations in the database.

store         conversations and messages
rows          rows as values
search        full text search
import_store  imports, a slice at a time
trash_store   deletion and restoring
"""
