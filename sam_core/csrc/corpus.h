// SPDX-License-Identifier: Apache-2.0
//
// A prepared collection of texts as a static source of drafts: a read-only, memory-mapped suffix array.
//
// The file holds the concatenated texts, each ended by CORPUS_END, and all their suffixes in lexicographic
// order. The suffixes that start with a string form an interval [low, high), in which the continuations of
// the string are sorted. For the texts A B C B C and B A, whose tokens have the positions 0 .. 4 and 6 .. 7,
// with CORPUS_END drawn as |:
//
//   index     0    1       2     3      4       5    6
//   position  7    0       6     3      1       4    2
//   suffix    A|   ABCBC|  BA|   BC|    BCBC|   C|   CBC|
//
// A context that ends in B C matches [3, 5), two occurrences. The column after BC shows the continuations:
// one occurrence ends its text, the other continues with B. Extending a match by a token is a binary search
// in that column. CORPUS_END sorts before all tokens, equals none and is never proposed, so neither a match
// nor a draft crosses the border of a text.
//
// The first occurrence (min_endpos of a static suffix automaton) is the smallest position in the interval. It
// is computed from the minima of blocks of CORPUS_BLOCK suffixes, of blocks of such blocks, and so on.
//
// Contexts. A corpus_context keeps one interval for each length of the context's last tokens that occurs.
// A longer string ends at a subset of the places where a shorter one ends. If both intervals are of one size,
// they list the same places in the same order, so a search in one serves both: appending a token costs two
// binary searches for each distinct size, all of them side by side so that their cache misses overlap.
//
// File, little-endian, sections start at multiples of CORPUS_ALIGN bytes:
//   header    corpus_header, padded to CORPUS_ALIGN bytes
//   tokens    int32[size]          texts with CORPUS_END after each; no empty text
//   suffixes  uint32[count]        positions of all tokens but CORPUS_END, in the order of the suffixes there
//   starts    uint32[buckets + 1]  first suffix whose first token >> shift is b or more, b = 0 .. buckets
//   minima    uint32[...]          minima of the suffixes' blocks, then of blocks of these, ... until at most
//                                  CORPUS_BLOCK are left
//
// A damaged body can cause wrong drafts, but no access outside the file, no endless loop and no token that
// the header does not allow: every position and token is checked when it is read. To replace a corpus in
// use, rename the new file over the old one, as build_corpus does: truncating a mapped file kills its readers.
//
// All functions but corpus_open and corpus_close are pure: they never fail, allocate nothing, and threads may
// call them concurrently. With integer arithmetic only, results are the same on every platform.

#ifndef CORPUS_H
#define CORPUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CORPUS_END (-1)        // ends each text in the token array
#define CORPUS_MAGIC "samcorp" // with its terminating zero
#define CORPUS_ORDER 0x01020304u
enum {
    CORPUS_VERSION = 2,
    CORPUS_ALIGN = 64,
    CORPUS_BLOCK = 64,
    CORPUS_LEVELS = 5,     // minima of 2^32 suffixes
    CORPUS_MAX_MATCH = 32, // tokens
    CORPUS_PROBES = 16,    // suffixes of an interval that corpus_next looks at
};

typedef struct {
    char magic[8];
    uint32_t version;
    uint32_t order;      // CORPUS_ORDER as the writer's machine stores it
    uint64_t bytes;      // of the whole file
    uint64_t tokenizer;  // fingerprint of the tokens' tokenizer (sam_core.tokenizer); 0: unknown
    uint32_t size;       // tokens, CORPUS_END included
    uint32_t texts;      // at least 1
    uint32_t largest;    // largest token
    uint32_t shift;      // see `starts`; 0 .. 31
    uint32_t body_crc;   // CRC-32 of the bytes after the header
    uint32_t header_crc; // CRC-32 of the header before this field
} corpus_header;

typedef struct {
    const int32_t *tokens;
    const uint32_t *suffixes;
    const uint32_t *starts;
    const uint32_t *minima[CORPUS_LEVELS];
    uint32_t size;    // of tokens
    uint32_t count;   // of suffixes
    uint32_t buckets; // starts has one entry more
    uint32_t shift;
    uint32_t texts;
    uint32_t largest; // token
    uint64_t tokenizer;
    const void *file; // the mapping
    size_t bytes;     // of the mapping
} corpus;

typedef enum {
    CORPUS_OK,
    CORPUS_SYSTEM,  // see errno
    CORPUS_REFUSED, // see *reason
} corpus_status;

// Suffixes [low, high) start with the same `length` tokens. Never empty.
typedef struct {
    uint32_t low, high, length;
} corpus_match;

// The suffixes of a text that occur in the corpus.
typedef struct {
    uint32_t length; // of the longest match, at most CORPUS_MAX_MATCH
    struct {
        uint32_t low, high;
    } at[CORPUS_MAX_MATCH + 1]; // at[n]: suffixes that start with the text's last n tokens, n = 0 .. length
} corpus_context;

// Maps a file and reads its pages ahead. Checks the header, its checksum and the file's size, not the body.
// With any status but CORPUS_OK nothing is open. *reason, set for CORPUS_REFUSED, continues a sentence that
// starts with the path and "is".
corpus_status corpus_open(corpus *c, const char *path, const char **reason);

// Unmaps the file. A zeroed or closed corpus is allowed.
void corpus_close(corpus *c);

// The context of an empty text: only the empty string matches, everywhere.
void corpus_start(const corpus *c, corpus_context *context);

// Appends `token` to the context's text. Any value is allowed: a token that is not in the corpus leaves the
// empty match. Only the last CORPUS_MAX_MATCH tokens count, so the rest of a long text need not be fed.
void corpus_advance(const corpus *c, corpus_context *context, int32_t token);

// The match of the last `length` tokens of the text, 0 .. context->length.
static inline corpus_match corpus_matched(const corpus_context *context, uint32_t length) {
    return (corpus_match){context->at[length].low, context->at[length].high, length};
}

// Restricts the match to the occurrences that continue with `token`. Returns false and leaves the match
// unchanged if there are none. The match may grow beyond CORPUS_MAX_MATCH.
bool corpus_extend(const corpus *c, corpus_match *match, int32_t token);

// The position after the match's first occurrence in the texts (min_endpos + 1 of a suffix automaton that
// counts from 0), which may hold CORPUS_END.
uint32_t corpus_first(const corpus *c, const corpus_match *match);

// Writes at most max_tokens tokens that follow the match, the most frequent first and on a tie the smaller
// id, and in counts[i] the number of occurrences that continue with tokens[i]. Returns the number of tokens.
//   - Every count is exact.
//   - Candidates are the tokens after CORPUS_PROBES evenly spaced suffixes of the interval. So every token
//     that follows at least 1/16 of the occurrences (high - low, including those at the end of a text) is a
//     candidate, and with at most 16 occurrences every token that follows one.
//   - CORPUS_END is never written.
uint32_t corpus_next(const corpus *c, const corpus_match *match, uint32_t max_tokens, int32_t *tokens,
                     uint32_t *counts);

#endif
