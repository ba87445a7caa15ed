"""The text process: chat templates and tokenization, apart from the front so that it can be killed."""
