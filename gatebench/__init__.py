"""gatebench: what does a gate in softmax attention change, and is the change real?"""

__version__ = "0.1.0"
