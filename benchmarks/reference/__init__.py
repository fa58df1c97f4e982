"""The reference backend beside the same library without a server: contenders, measurement, tables."""
