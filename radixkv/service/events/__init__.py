"""KV events for routers.

subscriptions  subscribers of a pool, through all its lives
batches        events as messages
smg            `SubscribeKvEvents` as existing routers call it
zmq            events over ZMQ in vLLM's form
"""
