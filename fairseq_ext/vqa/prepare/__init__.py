"""Steps of the data recipe of questions about pictures."""
