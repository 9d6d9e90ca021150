"""Replies below messages.

begun         the shared beginning of a continued reply
replying      requests for replies
message_task  replies under way
live          events for followers
live_text     the same at other gateways, through their shared server
branching     branches with other instructions, an edit, a later beginning
alternatives  other tokens at a position
pricing       token costs of a branch
"""
