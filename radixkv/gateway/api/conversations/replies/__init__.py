"""Replies below messages.

begun         a reply's place and prompt
replying      requests for replies
running       replies under way
live          events for followers
branching     branches with other instructions, an edit, a later beginning
alternatives  other tokens at a position
pricing       what a branch costs
"""
