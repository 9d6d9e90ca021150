"""Conversations in the database.

store         conversations and messages
rows          conversion of rows to values
search        text search
import_store  imports, a slice at a time
trash_store   deletion and restoring
lease_store   running replies by the gateway that writes them
"""
