"""Scores of models' outputs, tests of significance, and facts about the trainings behind them."""
