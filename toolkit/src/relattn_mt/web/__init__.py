"""Translation in browsers and in Node.js: the engine in WebAssembly, an ES module, and the models that both read."""
