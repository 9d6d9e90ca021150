"""The proof of the tests outside the core: bugs of client, service, gateway and worker, and the tests that must find each."""
