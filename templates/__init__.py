"""Every line of bash and pbtxt that is generated: Jinja2 templates; and JSON Schemas, generated themselves."""
