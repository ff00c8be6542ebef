"""Let a trained model answer samples of a dataset.

    python -m examples.vlm.generate CHECKPOINT SHARDS --generate 4 --new-tokens 64

CHECKPOINT is what --save wrote, with the model and its adapters. Give --tokenizer, --template,
--native and --max-length as in training. Prompts are the samples up to their first answer, with
their images.
"""

import argparse
import sys
from pathlib import Path

import datapipe
from examples.vlm.checkpoint import find, load_model
from examples.vlm.data.loaders import ordered_loader
from examples.vlm.data.texts import Vocabulary
from examples.vlm.model.config import MODELS
from examples.vlm.model.sampling import write_samples
from examples.vlm.model.vlm import VLM
from examples.vlm.options import in_options, parse_generate
from examples.vlm.parallel.ranks import Ranks, joined
from examples.vlm.techniques.switches import Techniques


def main(arguments: list[str] | None = None) -> None:
    options = parse_generate(arguments, __doc__)
    try:
        with joined(options.device) as ranks:
            answer(options, ranks)
    except (ValueError, OSError) as error:  # datapipe's own errors are such too
        sys.exit(f"generate: {in_options(str(error))}")


def answer(options: argparse.Namespace, ranks: Ranks) -> None:
    from examples.vlm.train import kernel_for, techniques_of

    checkpoint: Path = options.checkpoint
    _, content = find(checkpoint)
    about = content["about"]
    options.model = about["model"]
    vocabulary, config = Vocabulary.of(options.tokenizer), MODELS[options.model]
    if about["vocabulary"] != vocabulary.size:
        raise ValueError(
            f"{checkpoint} is of a tokenizer of {about['vocabulary']:,} tokens, and this one has "
            f"{vocabulary.size:,}; give --tokenizer as in training"
        )
    techniques = techniques_of(options)
    kernel = kernel_for(options, techniques, ranks.device)
    model = VLM(config, vocabulary.size, vocabulary.image_id, kernel)
    Techniques(lora=about["lora"]).apply(model)
    load_model(checkpoint, model)
    model.to(ranks.device)
    count = options.generate
    with ordered_loader(options, vocabulary, ranks, options.shards, samples=count) as loader:
        print_answers(model, loader, vocabulary, options)


def print_answers(
    model: VLM, loader: datapipe.Loader, vocabulary: Vocabulary, options: argparse.Namespace
) -> None:
    techniques = Techniques(precision=options.precision)
    with techniques.autocast(model.embedding.weight.device):
        answers = write_samples(
            model,
            loader,
            vocabulary,
            count=options.generate,
            max_new_tokens=options.new_tokens,
            temperature=options.temperature,
            top_k=options.top_k,
            seed=options.seed,
        )
    print(*answers, sep="\n", file=sys.stderr if options.json == "-" else sys.stdout)


if __name__ == "__main__":
    main()
