#!/usr/bin/env python3
"""Writes little stories, as many as you like, always the same ones for the same seed.

usage: stories.py [--count N] [--seed S]

A story is grown from a plot (plots_*.py): text in a small language in which `(a|b)` is a choice
and `{key}` a variable. A variable's value is such text again, so a choice may hold choices. The
variables of one story are fixed once - who it is about, one row of each of the plot's tables, the
words of words.py - and that is what keeps a story true to itself from beginning to end.

Story i of seed S depends on (S, i) alone, so any part of a corpus can be made by any process.
"""

import argparse
import functools
import random
import re

import plots_days       # noqa: F401  (importing a file of plots adds them to the list)
import plots_friends    # noqa: F401
import plots_home       # noqa: F401
import plots_magic      # noqa: F401
import plots_wild       # noqa: F401
import words
from plots import PLOTS

TOKEN = re.compile(r"[(|)]|\{\w+\}|[^(|){}]+")


@functools.lru_cache(maxsize=None)
def parse(text):
    """Text of the language as a tuple of parts: a str, ("var", key) or ("alt", [parts, ...])."""
    tokens = TOKEN.findall(text)
    assert "".join(tokens) == text, f"stray brace in: {text}"
    at = 0

    def sequence(depth):
        nonlocal at
        parts = []
        while at < len(tokens) and not (depth and tokens[at] in "|)"):
            token = tokens[at]
            at += 1
            if token == "(":
                choices = [sequence(depth + 1)]
                while tokens[at] == "|":
                    at += 1
                    choices.append(sequence(depth + 1))
                at += 1
                parts.append(("alt", choices))
            elif token[0] == "{":
                parts.append(("var", token[1:-1]))
            else:
                parts.append(token)
        return tuple(parts)

    return sequence(0)


@functools.lru_cache(maxsize=None)
def weights(n, flat):
    total, out = 0.0, []
    for i in range(n):
        total += 1.0 / (i + flat)
        out.append(total)
    return out


def zipf(rng, options, flat=4):
    """One of the options; the earlier ones are a little likelier. A bigger `flat` evens it out."""
    return rng.choices(options, cum_weights=weights(len(options), flat))[0]


class Story:
    def __init__(self, rng):
        self.rng = rng
        self.vars = dict(words.PHRASES)

    def grow(self, text):
        return self.grow_parts(parse(text))

    def grow_parts(self, parts):
        out = []
        for part in parts:
            if isinstance(part, str):
                out.append(part)
            elif part[0] == "alt":
                out.append(self.grow_parts(zipf(self.rng, part[1], 3)))
            else:
                out.append(self.value(part[1]))
        return "".join(out)

    def value(self, key):
        """A variable grown. {Key}: with a capital. {the_key}: with `the` for its article."""
        if key in self.vars:
            return self.grow(self.vars[key])
        if key.startswith("the_"):
            return re.sub(r"^(an? |some |)", "the ", self.value(key[4:]))
        grown = self.grow(self.vars[key[0].lower() + key[1:]])
        return grown[0].upper() + grown[1:]

    def name(self, names, taken=()):
        while True:
            if self.rng.random() < 0.12:
                made = "".join(self.rng.choices(words.SYLLABLES, k=self.rng.choice([2, 2, 3])))
                name = made.capitalize()
            else:
                name = zipf(self.rng, names, 6)
            if name not in taken:
                return name

    def cast(self, kind):
        """Hero, friend and parent. Animals are he or she too; a friend is of the hero's world."""
        rng, v = self.rng, self.vars
        child = kind == "child" or (kind == "any" and rng.random() < 0.6)
        is_girl, friend_is_girl = rng.random() < 0.55, rng.random() < 0.45
        v.update(words.SHE if is_girl else words.HE)
        v.update({"f" + k: x for k, x in (words.SHE if friend_is_girl else words.HE).items()})
        v["size"] = zipf(rng, ["little", "young", "small"])
        v["trait"] = zipf(rng, words.TRAITS)
        v["trait2"] = zipf(rng, [t for t in words.TRAITS if t != v["trait"]])
        v["parent"], parent_he = zipf(rng, words.PARENTS, 3)
        if child:
            v["H"] = self.name(words.GIRLS if is_girl else words.BOYS)
            v["F"] = self.name(words.GIRLS if friend_is_girl else words.BOYS, (v["H"],))
            v.update(kid="girl" if is_girl else "boy", fkind="girl" if friend_is_girl else "boy",
                     home=zipf(rng, ["house", "cottage"]), food="apples", hands="hands",
                     place=zipf(rng, words.CHILD_PLACES, 8),
                     hobby=zipf(rng, words.CHILD_HOBBIES, 8),
                     Fi="{His} friend {F}", Fx="{his} friend {F}", fellow="friend",
                     fintro="a " + zipf(rng, ["little", "shy", "small"]) + " {fkind} named {F}")
        else:
            (v["kid"], v["home"], v["food"], v["hands"]), (v["fkind"], *_) = (
                rng.sample(words.ANIMALS, 2))
            v["H"] = self.name(words.PETS)
            v["F"] = self.name(words.PETS, (v["H"],))
            v.update(place=zipf(rng, words.ANIMAL_PLACES, 8),
                     hobby=zipf(rng, words.ANIMAL_HOBBIES, 8),
                     Fi="{F} the {fkind}", Fx="{F} the {fkind}", fellow="neighbor",
                     fintro="a " + zipf(rng, ["little", "young", "small"]) + " {fkind} named {F}")
        phe = words.SHE if parent_he == "she" else words.HE
        v.update({"p" + k: x for k, x in phe.items()})

    def tell(self):
        kind, text, tables = self.rng.choice(PLOTS)
        self.cast(kind)
        for rows in tables.values():
            if rows[0] == "pick":       # a scene for each of the names, no scene twice
                self.vars.update(zip(rows[1], self.rng.sample(rows[2], len(rows[1]))))
            else:
                self.vars.update(zip(rows[0], zipf(self.rng, rows[1:])))
        # Some stories begin in the middle: either their first sentence introduces the hero, or
        # they simply say the name.
        self.vars["who"] = "{H}"
        if "{who}" in text and self.rng.random() < 0.15:
            text = text[text.index("\n\n"):]
            if self.rng.random() < 0.5:
                self.vars["who"] = "{intro}"
            else:
                self.vars["oneday"] = ""
        paragraphs = [" ".join(p.split()) for p in self.grow(text).split("\n\n") if p.strip()]
        return "\n\n".join(polish(p) for p in paragraphs)


def polish(paragraph):
    """Sets what the templates leave open: a or an, and the capital at the start of a sentence."""
    text = re.sub(r"\b([Aa]) (?=[aeiouAEIOU])", r"\1n ", paragraph)
    return re.sub(r'(^|[.!?] "?|\." )([a-z])', lambda m: m[1] + m[2].upper(), text)


def story(seed, i):
    """Story number i of the given seed, without a line end."""
    return Story(random.Random(f"{seed}/{i}")).tell()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for i in range(args.count):
        print(story(args.seed, i), end="\n\n----\n\n")


if __name__ == "__main__":
    main()
