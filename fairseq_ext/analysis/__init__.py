"""Pictures of what a training and a model did."""
