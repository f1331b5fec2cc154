"""Static files of the web page; `serve.api` has the routes that the page requests."""
