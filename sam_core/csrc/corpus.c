// SPDX-License-Identifier: Apache-2.0

#define _DEFAULT_SOURCE 1 // MAP_POPULATE

#include "corpus.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MAP_POPULATE
#define MAP_POPULATE 0
#endif

_Static_assert(sizeof(corpus_header) <= CORPUS_ALIGN, "the header has a fixed place");
_Static_assert(offsetof(corpus_header, header_crc) == 52, "the header has no gaps");

// ---- the file

// CRC-32 as zlib's.
static uint32_t crc32(const uint8_t *data, size_t bytes) {
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
    }
    return ~crc;
}

// The start of the section that follows one of `entries` 4-byte entries at `offset`.
static uint64_t section_end(uint64_t offset, uint64_t entries) {
    return (offset + 4 * entries + CORPUS_ALIGN - 1) / CORPUS_ALIGN * CORPUS_ALIGN;
}

static uint32_t blocks(uint32_t entries) { return entries / CORPUS_BLOCK + (entries % CORPUS_BLOCK != 0); }

// Locates the sections after the header h. Returns the reason to refuse them, or NULL.
static const char *lay_out(corpus *c, const corpus_header *h, size_t bytes) {
    if (bytes < sizeof *h || memcmp(h->magic, CORPUS_MAGIC, sizeof h->magic))
        return "no corpus: name a file that build_corpus wrote";
    if (h->order != CORPUS_ORDER)
        return "a corpus for little-endian machines, which this one is not";
    if (h->version != CORPUS_VERSION)
        return "a corpus of another version of sam_core: build it again";
    if (crc32((const uint8_t *)h, offsetof(corpus_header, header_crc)) != h->header_crc)
        return "a corpus with a damaged header: build it again";
    if (h->bytes != bytes)
        return "a corpus that was cut short or added to: copy or build it again";
    if (h->texts == 0 || h->texts >= h->size || h->largest > INT32_MAX || h->shift > 31)
        return "a corpus with impossible sizes: build it again";
    c->size = h->size;
    c->texts = h->texts;
    c->largest = h->largest;
    c->tokenizer = h->tokenizer;
    c->count = h->size - h->texts;
    c->shift = h->shift;
    c->buckets = (h->largest >> h->shift) + 1;
    const char *file = (const char *)h;
    uint64_t offset[CORPUS_LEVELS + 4] = {CORPUS_ALIGN};
    offset[1] = section_end(offset[0], c->size);
    offset[2] = section_end(offset[1], c->count);
    offset[3] = section_end(offset[2], (uint64_t)c->buckets + 1);
    uint32_t levels = 0;
    for (uint32_t entries = c->count; entries > CORPUS_BLOCK; levels++) {
        entries = blocks(entries);
        offset[levels + 4] = section_end(offset[levels + 3], entries);
    }
    if (offset[levels + 3] != bytes)
        return "a corpus with impossible sizes: build it again";
    c->tokens = (const int32_t *)(file + offset[0]);
    c->suffixes = (const uint32_t *)(file + offset[1]);
    c->starts = (const uint32_t *)(file + offset[2]);
    for (uint32_t level = 0; level < levels; level++)
        c->minima[level] = (const uint32_t *)(file + offset[level + 3]);
    return NULL;
}

corpus_status corpus_open(corpus *c, const char *path, const char **reason) {
    *c = (corpus){0};
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return CORPUS_SYSTEM;
    struct stat status;
    void *file = MAP_FAILED;
    int error = 0;
    if (fstat(descriptor, &status))
        error = errno;
    else if (S_ISREG(status.st_mode) && status.st_size > 0) {
        file = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, descriptor, 0);
        error = file == MAP_FAILED ? errno : 0;
    }
    close(descriptor);
    if (error) {
        errno = error;
        return CORPUS_SYSTEM;
    }
    bool mapped = file != MAP_FAILED;
    const char *wrong = lay_out(c, file, mapped ? (size_t)status.st_size : 0);
    if (wrong) {
        if (mapped)
            munmap(file, (size_t)status.st_size);
        *c = (corpus){0};
        *reason = wrong;
        return CORPUS_REFUSED;
    }
    c->file = file;
    c->bytes = (size_t)status.st_size;
    return CORPUS_OK;
}

void corpus_close(corpus *c) {
    if (c->file)
        munmap((void *)(uintptr_t)c->file, c->bytes);
    *c = (corpus){0};
}

// ---- searches

// Tokens are compared as token + 1, so that CORPUS_END is 0. Positions outside the texts count as CORPUS_END.
static uint32_t key_at(const corpus *c, uint64_t position) {
    return position < c->size ? (uint32_t)c->tokens[position] + 1 : 0;
}

// A search for the first suffix of [low, high) whose key at `depth` is at least `key`; low is the result.
typedef struct {
    uint32_t low, high, depth, key;
} bound;

enum { MAX_BOUNDS = 2 * CORPUS_MAX_MATCH };

// Runs all searches side by side, so that their cache misses overlap.
static void find(const corpus *c, bound *bounds, uint32_t count) {
    uint32_t open[MAX_BOUNDS];
    uint64_t position[MAX_BOUNDS];
    for (uint32_t i = 0; i < count; i++)
        open[i] = i;
    for (;;) {
        uint32_t left = 0;
        for (uint32_t i = 0; i < count; i++) {
            const bound *b = &bounds[open[i]];
            open[left] = open[i];
            left += b->low < b->high;
        }
        if (!(count = left))
            return;
        for (uint32_t i = 0; i < count; i++) {
            const bound *b = &bounds[open[i]];
            position[i] = (uint64_t)c->suffixes[b->low + (b->high - b->low) / 2] + b->depth;
        }
        for (uint32_t i = 0; i < count; i++) {
            bound *b = &bounds[open[i]];
            uint32_t middle = b->low + (b->high - b->low) / 2;
            bool before = key_at(c, position[i]) < b->key;
            b->low = before ? middle + 1 : b->low;
            b->high = before ? b->high : middle;
        }
    }
}

// The two bounds of the suffixes in [low, high) that have `token` at `depth`.
static void bounds_of(bound *pair, uint32_t low, uint32_t high, uint32_t depth, int32_t token) {
    pair[0] = (bound){low, high, depth, (uint32_t)token + 1};
    pair[1] = (bound){low, high, depth, (uint32_t)token + 2};
}

void corpus_start(const corpus *c, corpus_context *context) {
    context->length = 0;
    context->at[0].low = 0;
    context->at[0].high = c->count;
}

void corpus_advance(const corpus *c, corpus_context *context, int32_t token) {
    uint32_t bucket = (uint32_t)token >> c->shift;
    uint32_t old = context->length < CORPUS_MAX_MATCH ? context->length : CORPUS_MAX_MATCH - 1;
    context->length = 0;
    if (bucket >= c->buckets) // or token < 0
        return;
    uint32_t low = c->starts[bucket], high = c->starts[bucket + 1];
    if (low >= high || high > c->count)
        return;
    // Bounds of the match of length n are bounds[pair[n]] and the next.
    bound bounds[MAX_BOUNDS];
    uint32_t pair[CORPUS_MAX_MATCH] = {0}, size = 0, count = 2;
    bounds_of(bounds, low, c->shift ? high : low, 0, token);
    if (!c->shift)
        bounds[1].low = bounds[1].high = high;
    for (uint32_t n = 1; n <= old; n++) {
        low = context->at[n].low;
        high = context->at[n].high;
        if (high - low != size) {
            bounds_of(&bounds[count], low, high, n, token);
            size = high - low;
            count += 2;
        }
        pair[n] = count - 2;
    }
    uint32_t origin[CORPUS_MAX_MATCH];
    for (uint32_t n = 0; n <= old; n++)
        origin[n] = bounds[pair[n]].low;
    find(c, bounds, count);
    for (uint32_t n = old; n > 0; n--) {
        const bound *b = &bounds[pair[n]];
        context->at[n + 1].low = context->at[n].low + (b[0].low - origin[n]);
        context->at[n + 1].high = context->at[n].low + (b[1].low - origin[n]);
    }
    context->at[1].low = bounds[0].low;
    context->at[1].high = bounds[1].low;
    while (context->length <= old &&
           context->at[context->length + 1].low < context->at[context->length + 1].high)
        context->length++;
}

bool corpus_extend(const corpus *c, corpus_match *match, int32_t token) {
    if (token < 0)
        return false;
    bound pair[2];
    bounds_of(pair, match->low, match->high, match->length, token);
    find(c, pair, 2);
    if (pair[0].low >= pair[1].low)
        return false;
    *match = (corpus_match){pair[0].low, pair[1].low, match->length + 1};
    return true;
}

uint32_t corpus_first(const corpus *c, const corpus_match *match) {
    const uint32_t *entries = c->suffixes;
    uint32_t low = match->low, high = match->high, lowest = UINT32_MAX;
    for (uint32_t level = 0;; level++) {
        bool last = high - low <= 2 * CORPUS_BLOCK;
        for (; low < high && (last || low % CORPUS_BLOCK); low++)
            lowest = entries[low] < lowest ? entries[low] : lowest;
        if (last)
            break;
        for (; high % CORPUS_BLOCK; high--)
            lowest = entries[high - 1] < lowest ? entries[high - 1] : lowest;
        low /= CORPUS_BLOCK;
        high /= CORPUS_BLOCK;
        entries = c->minima[level];
    }
    uint64_t position = (uint64_t)lowest + match->length;
    return position < c->size ? (uint32_t)position : c->size - 1;
}

uint32_t corpus_next(const corpus *c, const corpus_match *match, uint32_t max_tokens, int32_t *tokens,
                     uint32_t *counts) {
    uint32_t size = match->high - match->low;
    uint32_t probes = size < CORPUS_PROBES ? size : CORPUS_PROBES;
    uint32_t at[CORPUS_PROBES], key[CORPUS_PROBES];
    for (uint32_t i = 0; i < probes; i++)
        at[i] = match->low + (uint32_t)((2 * (uint64_t)i + 1) * size / (2 * probes));
    uint64_t position[CORPUS_PROBES];
    for (uint32_t i = 0; i < probes; i++)
        position[i] = (uint64_t)c->suffixes[at[i]] + match->length;
    for (uint32_t i = 0; i < probes; i++)
        key[i] = key_at(c, position[i]);
    // A candidate's interval starts after the probe before its first one and ends before the probe after
    // its last one.
    bound bounds[2 * CORPUS_PROBES];
    uint32_t count = 0;
    for (uint32_t i = 0, next; i < probes; i = next) {
        for (next = i + 1; next < probes && key[next] == key[i]; next++)
            ;
        if (key[i] - 1 > c->largest)
            continue;
        bounds[count++] = (bound){i ? at[i - 1] + 1 : match->low, at[i], match->length, key[i]};
        bounds[count++] =
            (bound){at[next - 1] + 1, next < probes ? at[next] : match->high, match->length, key[i] + 1};
    }
    find(c, bounds, count);
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i += 2) {
        uint32_t occurrences = bounds[i + 1].low - bounds[i].low;
        uint32_t place = found < max_tokens ? found++ : max_tokens;
        for (; place > 0 && counts[place - 1] < occurrences; place--)
            if (place < max_tokens) {
                tokens[place] = tokens[place - 1];
                counts[place] = counts[place - 1];
            }
        if (place < max_tokens) {
            tokens[place] = (int32_t)(bounds[i].key - 1);
            counts[place] = occurrences;
        }
    }
    return found;
}
