#!/usr/bin/env python3
"""Writes texts in which something must be looked up far back, for a predictor to learn from: numbers, places and pairs that are asked
for some hundred words later, between passages of a book, and passages that come twice. Any model's tokenizer can read them.

    python3 models/recipe/recall_text.py BOOKS.txt --out recall.txt [--bytes N] [--seed S]"""
import argparse
import random
import re

NAMES = "Ada Boris Clara Dunstan Edith Felix Greta Hugo Ines Jonas Klara Ludo Mabel Niko Olga Percy Quentin Rosa Silas Tilda Ursula Viktor".split()
PLACES = "Alderbrook Birchfen Copperhill Dunmere Eastholt Fernwick Glasswater Highmoor Ivybridge Juniper Knollgate Lowmarsh Millstone".split()
THINGS = "lantern ledger compass violin kettle anchor saddle mirror basket hammer candle barrel whistle blanket ladder needle".split()
COLOURS = "amber black blue brown copper crimson green grey ivory orange purple silver white yellow".split()


def fact(rng):
    """A sentence to remember, and the words that ask for it and answer."""
    name, place, thing, colour = (rng.choice(words) for words in (NAMES, PLACES, THINGS, COLOURS))
    number = str(rng.randrange(10000, 100000))
    return rng.choice([
        (f"The number of the {colour} {thing} is {number}. Remember it.", f"What is the number of the {colour} {thing}? The number of the {colour} {thing} is {number}."),
        (f"{name} keeps the {colour} {thing} in {place}.", f"Where does {name} keep the {colour} {thing}? {name} keeps the {colour} {thing} in {place}."),
        (f"{name} of {place} owns the {colour} {thing}.", f"Who owns the {colour} {thing}? The {colour} {thing} is owned by {name} of {place}."),
    ])


def pairs(rng):
    """A list of pairs, and some of them again."""
    keys = rng.sample([f"{c}-{t}" for c in COLOURS for t in THINGS], 12)
    lines = [f"{key}: {rng.choice(COLOURS)} {rng.choice(PLACES)} {rng.randrange(1000)}" for key in keys]
    return "\n".join(lines), "\n".join(rng.sample(lines, 4))


def document(rng, books):
    """Facts between passages; then what was asked for, in another order."""
    def passage(n):
        at = rng.randrange(len(books) - n)
        return re.sub(r"\s+", " ", books[at:at + n]).strip().split(" ", 1)[1].rsplit(" ", 1)[0]

    told, asked = map(list, zip(*[fact(rng) for _ in range(rng.randrange(2, 6))]))
    if rng.random() < 0.3:
        first, again = pairs(rng)
        told.append(first)
        asked.append(again)
    if rng.random() < 0.3:
        told.append(passage(300))
        asked.append(told[-1])
    rng.shuffle(asked)
    parts = [part for sentence in told for part in (sentence, passage(rng.randrange(200, 800)))]
    parts += [part for answer in asked for part in (answer, passage(rng.randrange(100, 300)))]
    return "\n\n".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("books")
    parser.add_argument("--out", required=True)
    parser.add_argument("--bytes", type=int, default=6_000_000)
    parser.add_argument("--seed", type=int, default=20)
    args = parser.parse_args()
    with open(args.books, errors="replace") as file:
        books = file.read()
    rng, written = random.Random(args.seed), 0
    with open(args.out, "w") as out:
        while written < args.bytes:
            written += out.write(document(rng, books) + "\n\n")
    print(f"{args.out}: {written} characters")


if __name__ == "__main__":
    main()
