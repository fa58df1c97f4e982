"""Every line of bash and pbtxt that is generated: Jinja2 templates; JSON Schemas, generated themselves."""
