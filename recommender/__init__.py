"""The recommender service."""
