"""Threads that work alone do not change the others."""

import threading

import torch

from datapipe.torch_threads import single_threads


def test_every_thread_works_alone_and_the_default_stays():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with single_threads(3, "alone") as pool:
            together = threading.Barrier(3)

            def ask():
                together.wait()  # so that each thread answers once
                return torch.get_num_threads()

            answers = [pool.submit(ask) for _ in range(3)]
            assert [answer.result() for answer in answers] == [1, 1, 1]
            found: list[int] = []
            new = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
            new.start()
            new.join()
            assert found == [2]
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
