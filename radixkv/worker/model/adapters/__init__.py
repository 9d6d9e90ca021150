"""Low-rank adapters of a model.

lora       updates for each row of a batch
lora_file  an adapter's file
"""
