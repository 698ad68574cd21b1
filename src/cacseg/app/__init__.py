"""A web page that tries a trained model on images.

Starlette and one hand-written page rather than Gradio: a picture that tells the class under the pointer is no widget of
Gradio's, and two small packages load nothing from the network and send nothing out.
"""
