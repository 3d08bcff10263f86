"""A generated world to ask questions about: pictures, detectors, questions in VQA-v2's format."""
