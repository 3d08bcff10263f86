"""What comes from other libraries, and what goes to them: checkpoints of Hugging Face."""
