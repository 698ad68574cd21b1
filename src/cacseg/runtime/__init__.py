"""Images in, masks out, without torch: files, colours, results, ONNX Runtime, folders of predictions."""
