/* tokenizer_bytes.c - the byte encoder of "gpt2" vocabularies. */
#include "coordinator/text/tokenizer_bpe.h"

#include <stdbool.h>

static bool stands_for_itself(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/* The bytes that do not stand for themselves are numbered 0x00-0x20, 0x7F-0xA0, 0xAD. */
static uint32_t character_of(uint32_t byte)
{
    if (stands_for_itself(byte)) return byte;
    return 0x100 + (byte <= 0x20 ? byte : byte == 0xAD ? 0x43 : byte - 0x7F + 0x21);
}

static int byte_of(uint32_t character)
{
    if (character < 0x100) return stands_for_itself(character) ? (int)character : -1;
    uint32_t i = character - 0x100;
    return i <= 0x20 ? (int)i : i < 0x43 ? (int)(i - 0x21 + 0x7F) : i == 0x43 ? 0xAD : -1;
}

uint32_t byte_char(char out[BYTE_CHAR_BYTES_MAX], unsigned char byte)
{
    uint32_t c = character_of(byte);
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xC0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3F));
    return 2;
}

uint32_t byte_chars_decode(char *out, const char *text, uint32_t bytes)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < bytes;) {
        uint32_t lead = (unsigned char)text[i], length = 1;
        int byte = lead < 0x80 ? byte_of(lead) : -1;
        if (lead >= 0xC2 && lead < 0xE0 && i + 1 < bytes && (text[i + 1] & 0xC0) == 0x80) {
            byte = byte_of((lead & 0x1F) << 6 | (text[i + 1] & 0x3F));
            length = byte < 0 ? 1 : 2;
        }
        out[n++] = byte < 0 ? text[i] : (char)byte;
        i += length;
    }
    return n;
}
