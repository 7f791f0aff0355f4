"""What benches/serving.py is made of: servers, a client that speaks to many at once, prompts."""
