from tests.config.files import files as files
