"""The block store below a worker's pool: what outlives the pool, the process, and damage; next to llama.cpp's ways.

run            the command, its parts and bars
deployment     a service and a worker with a folder for blocks, that can be killed, restarted and damaged
stories        conversations and agent sessions as calls, the last of which is the next day's
asking         a request and its answer
next_day       the worker killed and restarted: tokens found, first tokens, replies
small_pool     a pool of a twentieth of what users come back to
llama          two conversations in turns on one slot, and a restart, compared with llama.cpp
break_even     the choice between loading and computing through slow links
slow_link      a server of the remote level, and a link to it of a given rate
damage         kill -9 in the midst of saves; damaged files
"""
