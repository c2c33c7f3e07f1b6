/* pretokenize_kinds.c - the table of pre-tokenizers.
 *
 * A pattern is a fact about the models that were trained with it. Source of the names and of what
 * they stand for: llama.cpp's list, with its ways: where it searches a text with spaces of any
 * kind replaced, the sets here leave those out. White space is spelled out, as PCRE2's \s takes
 * U+180E in, which has not been a space since Unicode 6.3. */
#include "coordinator/text/pretokenize.h"

#include <string.h>

#define WHITE                                                                                      \
    "\\t-\\r "                                                                                     \
    "\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define SPACE "[" WHITE "]"
#define OTHER "[^" WHITE "\\p{L}\\p{N}]" /* neither white space, letter nor number */

/* Of a run of spaces before a word the last one is left to the word. */
#define SPACES          SPACE "+(?![^" WHITE "])|" SPACE "+"
#define LINES_OR_SPACES SPACE "*[\\r\\n]+|" SPACES

#define ANY_CASE_SUFFIX "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"

#define GPT2                 "'(?:[stmd]|re|ve|ll)| ?\\p{L}+| ?\\p{N}+| ?" OTHER "+|" SPACES
#define WORDS_BEFORE_NUMBERS ANY_CASE_SUFFIX "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define OTHERS_AND_SPACES    "| ?" OTHER "+[\\r\\n]*|" LINES_OR_SPACES
#define LLAMA3               WORDS_BEFORE_NUMBERS "\\p{N}{1,3}" OTHERS_AND_SPACES
#define QWEN2                WORDS_BEFORE_NUMBERS "\\p{N}" OTHERS_AND_SPACES

#define QWEN35                                                                                     \
    ANY_CASE_SUFFIX "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"                                \
                    "| ?[^" WHITE "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINES_OR_SPACES

/* Letters but ASCII's small ones, then letters but ASCII's capitals: a word in mixed case is cut
 * before its capitals. */
#define UPPER        "[^\\P{L}a-z]"
#define LOWER        "[^\\P{L}A-Z]"
#define BEFORE_CASED "[^\\r\\n\\p{L}\\p{N}]?"
#define CASED_WORDS(suffix)                                                                        \
    BEFORE_CASED UPPER "*" LOWER "+" suffix "|" BEFORE_CASED UPPER "+" LOWER "*" suffix
#define CASED_REST "| ?" OTHER "+[\\r\\n/]*|" LINES_OR_SPACES
#define TEKKEN     CASED_WORDS("") "|\\p{N}" CASED_REST
#define GPT4O      CASED_WORDS("(?:" ANY_CASE_SUFFIX ")?") "|\\p{N}{1,3}" CASED_REST

#define DEEPSEEK_V3                                                                                \
    "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"                        \
    "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" LINES_OR_SPACES
#define HAN_AND_KANA "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{30FF}]+"

/* U+0800 to U+9FA5 and Hangul, without white space. */
#define DEEPSEEK_CJK                                                                               \
    "[\\x{800}-\\x{167F}\\x{1681}-\\x{1FFF}\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}"                 \
    "\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}\\x{3001}-\\x{9FA5}\\x{AC00}-\\x{D7FF}]+"
/* The letters that have case, as its makers listed them. */
#define DEEPSEEK_CASED                                                                             \
    "\\x{41}-\\x{5A}\\x{61}-\\x{7A}\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}"          \
    "\\x{1BC}-\\x{1BF}\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}"         \
    "\\x{37B}-\\x{37D}\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}"                  \
    "\\x{3A3}-\\x{3F5}\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}"                         \
    "\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}"                 \
    "\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}"                 \
    "\\x{1E00}-\\x{1F15}\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}"                 \
    "\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}"         \
    "\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}"        \
    "\\x{1FD6}-\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}"        \
    "\\x{2107}\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}"          \
    "\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}"        \
    "\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}"         \
    "\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}"                  \
    "\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}"                 \
    "\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}"               \
    "\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}"         \
    "\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"
#define DEEPSEEK_SIGNS                                                                             \
    "!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3001}\\x{3002}"
/* A run at the end is searched from its start only, or a long run elsewhere would be searched from
 * each of its characters. */
#define DEEPSEEK_LAST_SPACES "(?<!" SPACE ")" SPACE "++$"

#define FALCON_SIGNS "[\\p{P}$+<=>^~|`]+"
#define THREE_DIGITS "[0-9][0-9][0-9]"

static const pre_kind kinds[] = {
    {.names = "gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 mpt olmo jais trillion granite-docling",
     .pattern = {GPT2}},
    {.names = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2",
     .pattern = {LLAMA3},
     .ignore_merges = true,
     .add_bos = true},
    {.names = "dbrx smaug-bpe", .pattern = {LLAMA3}},
    {.names = "chatglm-bpe glm4", .pattern = {LLAMA3}, .no_bos_id = true},
    {.names = "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
     .pattern = {QWEN2}},
    {.names = "qwen35", .pattern = {QWEN35}},
    {.names = "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
     .pattern = {"\\p{N}", GPT2}},
    {.names = "deepseek-llm",
     .pattern = {"[\\r\\n]", SPACE "?[" DEEPSEEK_CASED "]+", SPACE "?[" DEEPSEEK_SIGNS "]+",
                 DEEPSEEK_LAST_SPACES, DEEPSEEK_CJK, "\\p{N}+"}},
    {.names = "deepseek-coder",
     .pattern = {"[\\r\\n]", SPACE "?\\p{L}+", SPACE "?\\p{P}+", DEEPSEEK_CJK, "\\p{N}"}},
    {.names = "deepseek-v3 hunyuan-dense joyai-llm",
     .pattern = {"\\p{N}{1,3}", HAN_AND_KANA, DEEPSEEK_V3}},
    {.names = "falcon", .pattern = {FALCON_SIGNS, GPT2, THREE_DIGITS}},
    {.names = "tekken", .pattern = {TEKKEN}, .ignore_merges = true, .add_bos = true},
    {.names = "gpt-4o llama4 kanana2 talkie minimax-m2", .pattern = {GPT4O}},
    {.names = "gemma4", .pattern = {"[^\\n]+|\\n+"}, .add_bos = true, .raw = true},
    {.names = "default", .pattern = {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", THREE_DIGITS}},
};
#define N_KINDS (sizeof kinds / sizeof kinds[0])

static bool has_name(const char *names, const char *name, uint64_t bytes)
{
    for (const char *at = names; *at != '\0';) {
        uint64_t n = strcspn(at, " ");
        if (n == bytes && memcmp(at, name, bytes) == 0) return true;
        at += n + (at[n] == ' ');
    }
    return false;
}

const pre_kind *pre_kind_find(const char *name, uint64_t bytes)
{
    for (uint32_t i = 0; i < N_KINDS; i++)
        if (has_name(kinds[i].names, name, bytes)) return &kinds[i];
    return NULL;
}
