/* tokenize: the ids of a text. Reads the vocabulary alone: files without weights will do. */
#include "coordinator/commands/output.h"
#include "coordinator/commands/preview.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define USAGE "tokenize [-m FILE] [-p TEXT | -f FILE] [--no-special] [--no-bos]"
#define ABOUT                                                                                      \
    "Prints the token ids of a text on one line, separated by spaces; no ids, an empty\n"          \
    "line. No stage is started, and a file that holds a vocabulary alone will do. BOS\n"           \
    "comes first where the model says so, never twice. Bytes that are not UTF-8 become\n"          \
    "byte tokens."

static status print_ids(const uint32_t *ids, uint64_t n, errmsg *e)
{
    char *line = malloc(n * 11 + 1), *at = line;
    if (line == NULL) return errmsg_set(e, ST_RESOURCES, "no memory for the line of ids");
    for (uint64_t i = 0; i < n; i++)
        at += sprintf(at, i == 0 ? "%u" : " %u", ids[i]);
    *at++ = '\n';
    status s = output_write(STDOUT_FILENO, "standard output", line, (uint64_t)(at - line), e);
    free(line);
    return s;
}

static status tokenize(const common_options *c, const char *text, const char *file,
                       tokenize_options how, errmsg *e)
{
    status s;
    gguf *g = NULL;
    tokenizer *words = NULL;
    uint32_t *ids = NULL;
    uint64_t n = 0;
    prompt given = {0};
    TRY_DONE(s, options_model(c, e));
    TRY_DONE(s, prompt_read(&given, text, file, e));
    TRY_DONE(s, options_open_model(c, &g, e));
    uint64_t n_vocab = gguf_array_n(g, "tokenizer.ggml.tokens");
    if (n_vocab == 0 || n_vocab > UINT32_MAX) {
        s = errmsg_set(e, ST_BAD_MODEL, "%s has no vocabulary (tokenizer.ggml.tokens)", c->model);
        goto done;
    }
    tokenizer_options words_how = {.any_pre = c->any_pre};
    TRY_DONE(s, tokenizer_open_with(&words, g, (uint32_t)n_vocab, words_how, e));
    TRY_DONE(s, tokenizer_encode(words, given.text, given.bytes, how, &ids, &n, e));
    TRY_DONE(s, print_ids(ids, n, e));
done:
    free(ids);
    if (words != NULL) tokenizer_close(words);
    if (g != NULL) gguf_close(g);
    prompt_free(&given);
    return s;
}

int cmd_tokenize(int argc, char **argv)
{
    const char *text = NULL, *file = NULL;
    bool no_special = false, no_bos = false;
    const option own[] = {
        {"prompt", 'p', OPTION_TEXT, "TEXT", "the text. Default: empty", &text, 0, 0},
        {"file", 'f', OPTION_TEXT, "FILE", "read the text from FILE, - is standard input", &file, 0,
         0},
        {"no-special", 0, OPTION_FLAG, NULL,
         "special tokens in the text are text. Default: they are parsed", &no_special, 0, 0},
        {"no-bos", 0, OPTION_FLAG, NULL, "no BOS first", &no_bos, 0, 0},
    };
    common_options c;
    errmsg e = {0};
    uint32_t n_own = sizeof own / sizeof own[0];
    const command_form form = {USAGE, ABOUT, own, n_own, NULL, 0, NULL, NULL};
    int code;
    if (!options_begin(&c, argc, argv, &form, &code)) return code;
    tokenize_options how = {.bos = !no_bos, .special = !no_special};
    if (options_no_json(&c, "tokenize", &e) != ST_OK ||
        tokenize(&c, text, file, how, &e) != ST_OK) {
        return command_failed(&e);
    }
    return 0;
}
