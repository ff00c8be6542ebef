"""Let a trained model answer samples of a dataset.

    python -m examples.vlm.generate CHECKPOINT SHARDS --generate 4 --new-tokens 64

CHECKPOINT is what --save wrote, with the model and its adapters. Give --tokenizer, --template,
--native and --max-length as in training. Prompts are images and texts up to the first answer.
"""

import argparse
import sys

from examples.vlm.checkpoint import fill, find
from examples.vlm.data.loaders import ordered_loader
from examples.vlm.data.texts import Vocabulary
from examples.vlm.model.config import MODELS
from examples.vlm.model.sampling import print_answers
from examples.vlm.model.vlm import VLM
from examples.vlm.options import in_options, parse_generate
from examples.vlm.parallel.ranks import Ranks, joined
from examples.vlm.techniques import Techniques
from examples.vlm.train import kernel_for, techniques_of


def main(arguments: list[str] | None = None) -> None:
    options = parse_generate(arguments, __doc__)
    try:
        with joined(options.device) as ranks:
            answer(options, ranks)
    except (ValueError, OSError) as error:  # datapipe's own errors are such too
        sys.exit(f"generate: {in_options(str(error))}")


def answer(options: argparse.Namespace, ranks: Ranks) -> None:
    folder, content = find(options.checkpoint)
    about = content["about"]
    options.model = about["model"]
    vocabulary = Vocabulary.of(options.tokenizer)
    if about["vocabulary"] != vocabulary.size:
        raise ValueError(
            f"{options.checkpoint} was trained with a tokenizer of {about['vocabulary']:,} tokens, "
            f"and this one has {vocabulary.size:,}; give --tokenizer as in training"
        )
    kernel = kernel_for(options, techniques_of(options), ranks.device)
    model = VLM(MODELS[options.model], vocabulary.size, vocabulary.image_id, kernel)
    Techniques(lora=about["lora"]).apply(model)
    fill(model, folder, content)
    model.to(ranks.device)
    count = options.generate
    with ordered_loader(options, vocabulary, ranks, options.shards, samples=count) as loader:
        print_answers(model, loader, vocabulary, options)


if __name__ == "__main__":
    main()
