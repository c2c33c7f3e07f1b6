/* tokenizer_known.c - owns the pieces that are known by their text.
 *
 * Files name EOS always, EOT seldom, and give many a special token a wrong type. Source of the
 * lists and of the exceptions: llama.cpp. */
#include "coordinator/text/tokenizer_vocab.h"

#include "common/sampler.h"

#include <string.h>

static uint32_t find(const vocab *v, const char *text)
{
    return vocab_find(v, text, strlen(text));
}

static bool is_end(const vocab *v, const char *text)
{
    uint32_t id = find(v, text);
    return id != TOKEN_NONE && v->piece[id].end;
}

/* What these end is a turn, or a call to a tool; control tokens whatever the file says. */
static void mark_ends(vocab *v)
{
    static const char *const texts[] = {"</s>",
                                        "<eos>",
                                        "<|eot_id|>",
                                        "<|eom_id|>",
                                        "<|im_end|>",
                                        "<|end|>",
                                        "<|return|>",
                                        "<|call|>",
                                        "<|calls|>",
                                        "<|flush|>",
                                        "<end_of_turn>",
                                        "<turn|>",
                                        "<|tool_response>",
                                        "<|endoftext|>",
                                        "<|end_of_text|>",
                                        "<end_of_utterance>",
                                        "<\xEF\xBD\x9C"
                                        "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
                                        "<EOT>",
                                        "_<EOT>",
                                        "[EOT]",
                                        "[EOS]",
                                        "[e~["};
    for (uint32_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        uint32_t id = find(v, texts[i]);
        if (id == TOKEN_NONE) continue;
        v->piece[id].end = true;
        v->piece[id].type = PIECE_CONTROL;
    }
}

/* The tokens that fill a gap in a text. Where the file names one its type is left alone; else the
 * first text that is there is the one. */
static status mark_fill(vocab *v, const gguf *g, errmsg *e)
{
#define BAR "\xEF\xBD\x9C" /* U+FF5C */
#define LOW "\xE2\x96\x81" /* U+2581 */
    static const struct {
        const char *key[2];
        const char *text[9];
        bool ends;
    } roles[] = {
        {{"fim_pre", "prefix"},
         {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<" BAR "fim" LOW "begin" BAR ">",
          "<PRE>", LOW "<PRE>", "<|code_prefix|>", "<|prefix|>"},
         false},
        {{"fim_suf", "suffix"},
         {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<" BAR "fim" LOW "hole" BAR ">",
          "<SUF>", LOW "<SUF>", "<|code_suffix|>", "<|suffix|>"},
         false},
        {{"fim_mid", "middle"},
         {"<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<" BAR "fim" LOW "end" BAR ">",
          "<MID>", LOW "<MID>", "<|code_middle|>", "<|middle|>"},
         false},
        {{"fim_pad"}, {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>"}, true},
        {{"fim_rep"},
         {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"},
         true},
        {{"fim_sep"}, {"<|file_sep|>"}, true},
    };
    for (uint32_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        uint32_t id = TOKEN_NONE;
        for (uint32_t k = 0; k < 2 && roles[i].key[k] != NULL; k++) {
            char key[64] = "tokenizer.ggml.";
            strcat(strcat(key, roles[i].key[k]), "_token_id");
            TRY(vocab_read_id(v, g, key, &id, e));
        }
        bool named = id != TOKEN_NONE;
        for (uint32_t k = 0; id == TOKEN_NONE && roles[i].text[k] != NULL; k++)
            id = find(v, roles[i].text[k]);
        if (id == TOKEN_NONE) continue;
        if (!named) v->piece[id].type = PIECE_CONTROL;
        v->piece[id].end |= roles[i].ends;
    }
    return ST_OK;
}

static void unmark(vocab *v, const char *text, piece_type type)
{
    uint32_t id = find(v, text);
    if (id == TOKEN_NONE || !v->piece[id].end) return;
    v->piece[id].end = false;
    v->piece[id].type = type;
}

/* Formats in which a text of the lists has another meaning. */
static void mark_exceptions(vocab *v)
{
    static const char *const shown[] = {"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"};
    for (uint32_t i = 0; i < sizeof shown / sizeof shown[0]; i++) {
        uint32_t id = find(v, shown[i]);
        if (id != TOKEN_NONE) v->piece[id].type = PIECE_USER_DEFINED;
    }
    bool call = is_end(v, "<|call|>") || is_end(v, "<|calls|>");
    if (call && (is_end(v, "<|return|>") || is_end(v, "<|flush|>")))
        unmark(v, "<|end|>", PIECE_USER_DEFINED);
    if (is_end(v, "<|tool_response>")) unmark(v, "</s>", PIECE_NORMAL);
}

status vocab_mark_known(vocab *v, const gguf *g, errmsg *e)
{
    TRY(mark_fill(v, g, e));
    mark_ends(v);
    mark_exceptions(v);
    return ST_OK;
}
