/* draft_option.h - --draft-model: a second model that drafts for the first.
 *
 * It runs in one stage on the device of the first model's last stage, which is idle while it draws,
 * with the first model's context and KV type and a session for each of its sessions and for one
 * that is just being left. What both need together is compared with what is free before anything
 * starts. */
#ifndef COORDINATOR_DRAFT_OPTION_H
#define COORDINATOR_DRAFT_OPTION_H

#include "coordinator/commands/preview.h"
#include "coordinator/draft_model.h"

/* The row for a command's table of options. */
#define DRAFT_MODEL_OPTION(path)                                                                   \
    {"draft-model", 0, OPTION_TEXT, "FILE",                                                        \
     "a small model of the same vocabulary that drafts, in a process of its own; one that is "     \
     "lost costs speed only. Default: none, drafts are what followed the same tokens before",      \
     &(path), 0, 0}

typedef struct {
    common_options common; /* as if it were run alone */
    preview look;          /* with its words */
} draft_option;

/* An error about the file, with the option before it; returns its code. */
status draft_option_refuse(const errmsg *why, errmsg *e);

/* Look at the file, beside main, whose words are read. ST_BAD_MODEL also: another vocabulary,
 * naming both files; ST_RESOURCES: both do not fit; else as preview_open and preview_words.
 * draft_option_close is legal in any case. */
MUST_USE status draft_option_open(draft_option *out, const char *path, const common_options *c,
                                  const preview *main, errmsg *e);
void draft_option_close(draft_option *o);

/* What it would be beside main, without its words: for whoever has no text. */
MUST_USE status draft_option_look(draft_option *out, const char *path, const common_options *c,
                                  const preview *main, errmsg *e);

/* Both fit into the host's memory. ST_RESOURCES, naming what they need and what is free. */
MUST_USE status draft_option_fits(const draft_option *o, const preview *main, errmsg *e);

/* Start it. Errors as pipeline_open, with the option before them. */
MUST_USE status draft_option_start(draft_model **out, const draft_option *o, errmsg *e);

#endif
