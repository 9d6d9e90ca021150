"""Conversations stored on the server: trees of messages, for the chat page and other clients.

routes, message_routes -> conversation_service -> store (rows of the gateway's database)
                                               -> live  (followers of a conversation; replies being written)
       -> replying -> message_task (one per generation: worker's events -> replies that grow)
       -> imports, exports
"""
