/* tokenizer.h - text to token ids and back, as the model file says.
 *
 * Owns the vocabulary. The kinds (tokenizer.ggml.model):
 * - "llama": SentencePiece-style: pieces merged greedily by score, the leftmost among equals, byte
 *   fallback, optional space prefix. Gemma 1 to 3 are of this kind.
 * - "gpt2": byte-level BPE: the text is cut into words by the pre-tokenizer that the file names
 *   (tokenizer.ggml.pre; pretokenize.h has the list), and each word's bytes are merged by the
 *   file's merges, the earlier first, the leftmost among equals.
 * - "gemma4": the same over characters instead of bytes, with U+2581 for a space and byte fallback;
 *   also "gpt2" with the pre-tokenizer gemma4.
 * Others are refused by name, and so is a pre-tokenizer that is not known or not named, unless the
 * caller insists. Text is bytes; invalid UTF-8 goes through byte by byte, and comes back the same;
 * NUL is a byte like others. Nothing changes after open: any number of threads may encode at once.
 *
 * Ids are those that llama.cpp gives for well-formed text, with these differences: merging never
 * forms a control, unknown or byte token (as SentencePiece, so that plain text cannot spell one);
 * no default BOS or EOS that is an ordinary token; pretokenize.h names one more. Special tokens are
 * cut out of the text first, the longest first: user-defined ones always, control and unknown ones
 * only with `special`. The pieces of encode(x), put together with `first` on the first id that is
 * not BOS, give x again, except that U+2581 in x comes back as a space where it stands for one,
 * that with a space prefix each text after a special token has a space before it, and that a byte
 * (gemma4: a character) that a BPE vocabulary has no token for is left out, as llama.cpp does. */
#ifndef COORDINATOR_TOKENIZER_H
#define COORDINATOR_TOKENIZER_H

#include "common/gguf.h"

typedef struct tokenizer tokenizer;

#define TOKENIZER_TEXT_BYTES_MAX (256u << 20)

typedef struct {
    bool any_pre; /* take the pre-tokenizer "default" for one that is not known or not named; the
                   * ids are then not those that the model was trained with */
} tokenizer_options;

/* ST_BAD_MODEL: kind or pre-tokenizer not supported, arrays missing or of unequal length ("gpt2",
 * "gemma4": scores and types may be missing, merges may not), byte tokens missing ("llama"), a
 * piece twice, a score that is NaN, ids out of range, more pieces than n_vocab. ST_RESOURCES: no
 * memory. *out is NULL then. g is not needed afterwards. tokenizer_open is without options. */
MUST_USE status tokenizer_open(tokenizer **out, const gguf *g, uint32_t n_vocab, errmsg *e);
MUST_USE status tokenizer_open_with(tokenizer **out, const gguf *g, uint32_t n_vocab,
                                    tokenizer_options o, errmsg *e);
void tokenizer_close(tokenizer *t); /* t may be NULL */

typedef struct {
    bool bos;     /* put BOS first where the file says so (add_bos_token; the default is the kind's:
                   * "llama" yes, "gpt2" as the pre-tokenizer says, "gemma4" always) */
    bool special; /* parse special tokens that stand in the text */
    bool eos;     /* put EOS last where the file says so (add_eos_token; default: no) */
} tokenize_options;

/* Encode bytes of text: *out is an owned array of *n ids (never NULL, also for n 0), each of them
 * < tokenizer_n. An empty text gives BOS alone or nothing. Never two BOS: when the text itself
 * starts with the BOS piece (special), none is added. Time grows as n log n. ST_RESOURCES: no
 * memory, or the text is longer than TOKENIZER_TEXT_BYTES_MAX. *out is NULL then. */
MUST_USE status tokenizer_encode(const tokenizer *t, const char *text, uint64_t bytes,
                                 tokenize_options o, uint32_t **out, uint64_t *n, errmsg *e);

/* The bytes of one token as it appears in text: *bytes of *text, owned by t. Control and unknown
 * tokens give no bytes unless special; ids from tokenizer_n to n_vocab - 1 (a padded head) give
 * none. first: the first token of the text after BOS (drops the one prefixed space, where the file
 * asks for a prefix). id must be < n_vocab: compare before the call. */
void tokenizer_piece(const tokenizer *t, uint32_t id, bool first, bool special, const char **text,
                     uint32_t *bytes);

/* TOKEN_NONE (sampler.h) when the model has none. */
uint32_t tokenizer_bos(const tokenizer *t);

/* Generation stops there: EOS, EOT and EOM as the file names them, and the pieces that are known to
 * end a turn by their text. Any id may be asked. */
bool tokenizer_is_end(const tokenizer *t, uint32_t id);

/* They give the same ids to every text: kind, pieces and their types. *at: the first piece that
 * differs, or the number of pieces that the shorter vocabulary has; UINT32_MAX: the kinds do. */
bool tokenizer_same(const tokenizer *a, const tokenizer *b, uint32_t *at);

/* How many pieces the vocabulary has, <= n_vocab. */
uint32_t tokenizer_n(const tokenizer *t);

#endif
