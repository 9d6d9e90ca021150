"""Batches: thousands of requests that are given at once, run below what people ask for, and are fetched when they are done."""
