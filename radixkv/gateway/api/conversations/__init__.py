"""Conversations kept on the server: trees of messages, for the chat page and whoever else wants them.

routes, message_routes -> keeping (the calls) -> store (rows of the gateway's database)
                              -> live  (who follows a conversation; what of it is being written)
       -> replying -> running (a task per generation: worker's events -> replies that grow)
       -> imports, exports
"""
