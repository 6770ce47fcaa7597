"""The node pack in a real ComfyUI: `python -m tools.comfyui.check`."""
