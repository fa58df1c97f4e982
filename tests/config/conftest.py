from tests.config.fixtures import files as files
