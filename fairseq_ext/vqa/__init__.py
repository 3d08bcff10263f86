"""Questions about pictures: models, task, criterion, data and recipes; nothing else needs them."""
