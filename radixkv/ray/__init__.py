"""Workers, cache services and gateways on a Ray cluster, which places, restarts and scales them: needs the extra `ray`.

app           the Serve application, from settings or from the arguments of a `serve deploy` file
replicas      the actors: a node's cache service, a worker
numbers       numbers of a node's workers, by which their pools are named
autoscaling   the number of workers, by the time that prompts wait
"""
