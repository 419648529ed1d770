"""Read prepared data that lies elsewhere: on a web server, in S3, or wherever else fsspec can read."""
