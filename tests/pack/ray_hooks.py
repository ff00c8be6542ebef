"""Faults of workers on a Ray cluster: hooks that Ray calls when it starts a worker process."""

import os
import signal
import time

from datapipe.errors import MissingMember
from datapipe.pack.input import raw_sample
from datapipe.pack.workers import library_messages, prepare


def die_at_333():
    add_image = prepare._Sample.add_image

    def watched(self, image):
        if str(image.blob.path).endswith("333.jpg"):
            os.kill(os.getpid(), signal.SIGKILL)
        add_image(self, image)

    prepare._Sample.add_image = watched


def linger():
    library_messages.keep_messages = lambda: time.sleep(60)


def miss_222():
    opened = raw_sample.Blob.open

    def open(self):
        if str(self.path).endswith("222.jpg"):
            raise MissingMember("file is missing", member=self.label)
        return opened(self)

    raw_sample.Blob.open = open
