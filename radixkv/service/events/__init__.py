"""KV events for routers.

subscriptions  subscribers of pools, life by life
batches        events as messages
smg            `SubscribeKvEvents` as existing routers call it
zmq            events over ZMQ in vLLM's form
"""
