/* tokenizer_bpe.h - inside the tokenizer: how "gpt2" vocabularies write bytes.
 *
 * A piece is written with one character for each byte: printable Latin-1 characters stand for
 * themselves, the other bytes in ascending order for U+0100 and on. Source: GPT-2's byte encoder.
 */
#ifndef COORDINATOR_TOKENIZER_BPE_H
#define COORDINATOR_TOKENIZER_BPE_H

#include <stdint.h>

#define BYTE_CHAR_BYTES_MAX 2u

/* Write the character of a byte; returns its length, 1 or 2. */
uint32_t byte_char(char out[BYTE_CHAR_BYTES_MAX], unsigned char byte);

/* Write what the piece stands for; returns the bytes, at most `bytes`. A character that stands for
 * no byte is written as it is. */
uint32_t byte_chars_decode(char *out, const char *text, uint32_t bytes);

#endif
