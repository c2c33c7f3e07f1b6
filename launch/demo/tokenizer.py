"""A tokenizer in the way of SentencePiece's BPE, as GGUF files call it `llama`.

A piece is a string in which U+2581 stands for a space, with a score. A text is encoded by turning
it into characters and then joining, again and again, the two neighbours whose joined piece has the
highest score (the leftmost of equals). What is still no piece in the end becomes bytes.

Pieces are learned from word counts: the pair of neighbours that is most frequent becomes the next
piece, and the score of a piece is minus its rank, so that encoding repeats the learned order. No
piece crosses the start of a word or mixes letters with other signs, and none holds a line end;
this is why words can be encoded one by one (and remembered) with the same result.
"""

import collections
import heapq
import re
import string

SPACE = "\u2581"
UNK, BOS, EOS = 0, 1, 2
TYPE_NORMAL, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_BYTE = 1, 2, 3, 6
FIRST_BYTE = 3

WORD = re.compile(f"{SPACE}?[^{SPACE}\n]+|{SPACE}|\n")
UNIT = re.compile(f"{SPACE}?[A-Za-z]+|{SPACE}?[^A-Za-z{SPACE}\n]+|{SPACE}")
CHARACTERS = SPACE + string.ascii_letters + string.digits + string.punctuation


def escape(text):
    """The text as pieces see it, with the space before the first word (add_space_prefix)."""
    return (SPACE + text.replace(" ", SPACE)) if text else ""


class Tokenizer:
    def __init__(self, pieces):
        """pieces: the normal pieces, best score first."""
        self.tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + pieces
        n_special = FIRST_BYTE + 256
        self.scores = [0.0] * n_special + [-float(rank) for rank in range(len(pieces))]
        self.types = [TYPE_UNKNOWN, TYPE_CONTROL, TYPE_CONTROL] + [TYPE_BYTE] * 256
        self.types += [TYPE_NORMAL] * len(pieces)
        self.ids = {p: n_special + rank for rank, p in enumerate(pieces)}
        self.cache = {}

    def encode(self, text):
        """Token ids of a text, without <s>."""
        out = []
        for word in WORD.findall(escape(text)):
            if word not in self.cache:
                self.cache[word] = self.encode_word(word)
            out += self.cache[word]
        return out

    def encode_word(self, word):
        parts = list(word)                          # a joined part moves left, None to its right
        after = list(range(1, len(parts) + 1))
        before = list(range(-1, len(parts) - 1))
        queue = []

        def offer(left):
            right = after[left] if left >= 0 else len(parts)
            if left < 0 or right >= len(parts):
                return
            joined = parts[left] + parts[right]
            if joined in self.ids:
                heapq.heappush(queue, (-self.scores[self.ids[joined]], left, right, joined))

        for i in range(len(parts)):
            offer(i)
        while queue:
            _, left, right, joined = heapq.heappop(queue)
            stale = parts[left] is None or parts[right] is None or after[left] != right
            if stale or parts[left] + parts[right] != joined:
                continue
            parts[left], parts[right] = joined, None
            after[left] = after[right]
            if after[left] < len(parts):
                before[after[left]] = left
            offer(before[left])
            offer(left)
        out = []
        for part in parts:
            if part in self.ids:
                out.append(self.ids[part])
            elif part is not None:
                out += [FIRST_BYTE + b for b in part.encode()]
        return out

    def decode(self, ids):
        """The text of ids that begin a text: the space before its first word is taken away."""
        return self.decode_on(ids).removeprefix(" ")

    def decode_on(self, ids):
        """The text of ids that continue one."""
        raw = b""
        for i in ids:
            if self.types[i] == TYPE_BYTE:
                raw += bytes([i - FIRST_BYTE])
            elif self.types[i] == TYPE_NORMAL:
                raw += self.tokens[i].replace(SPACE, " ").encode()
        return raw.decode("utf-8", "replace")


def learn(texts, n_vocab):
    """A tokenizer of n_vocab tokens for such texts."""
    counts = collections.Counter()
    for text in texts:
        counts.update(UNIT.findall(escape(text)))
    units = [(list(unit), n) for unit, n in sorted(counts.items())]
    pieces = []
    n_pieces = n_vocab - FIRST_BYTE - 256 - len(CHARACTERS)
    while len(pieces) < n_pieces:
        pairs = collections.Counter()
        for parts, n in units:
            for pair in zip(parts, parts[1:]):
                pairs[pair] += n
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        joined = "".join(best)
        if joined not in pieces:
            pieces.append(joined)
        for parts, _ in units:
            i = 0
            while i < len(parts) - 1:
                if (parts[i], parts[i + 1]) == best:
                    parts[i:i + 2] = [joined]
                i += 1
    return Tokenizer(pieces + list(CHARACTERS))
