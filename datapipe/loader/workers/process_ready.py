"""Last import of the server that forks workers, which unblocks Ctrl-C.

The server was started with SIGINT blocked, so that Ctrl-C during its imports, which the terminal
sends to it too, does not end in a traceback.
"""

import signal

# A pending interrupt is dropped: the training process got it as well.
_handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
signal.signal(signal.SIGINT, _handler)
