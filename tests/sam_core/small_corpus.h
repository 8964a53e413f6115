// SPDX-License-Identifier: Apache-2.0
//
// Makes a corpus file of a few texts in memory, by a naive sort. Include it after corpus.c, whose format
// functions it uses.

#ifndef SMALL_CORPUS_H
#define SMALL_CORPUS_H

#include <stdlib.h>

static const corpus_header *sorted_header; // qsort passes no context
static const int32_t *sorted_tokens;

static int compare_suffixes(const void *one, const void *other) {
    uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)other, size = sorted_header->size;
    while (a < size && b < size && sorted_tokens[a] == sorted_tokens[b]) {
        a++;
        b++;
    }
    if (a == size || b == size)
        return a == size ? -1 : 1;
    return sorted_tokens[a] < sorted_tokens[b] ? -1 : 1;
}

// Returns a block with the corpus file of `stream`, at least one text of tokens below 2^16 with CORPUS_END
// after each, and its size in *bytes. NULL: no memory. The caller frees it.
static void *make_corpus(const int32_t *stream, uint32_t size, size_t *bytes) {
    corpus_header header = {
        .magic = CORPUS_MAGIC, .version = CORPUS_VERSION, .order = CORPUS_ORDER, .size = size};
    for (uint32_t i = 0; i < size; i++) {
        header.texts += stream[i] == CORPUS_END;
        if (stream[i] > (int32_t)header.largest)
            header.largest = (uint32_t)stream[i];
    }
    uint32_t count = size - header.texts;
    uint64_t tokens_at = CORPUS_ALIGN, suffixes_at = section_end(tokens_at, size);
    uint64_t starts_at = section_end(suffixes_at, count);
    uint64_t minima_at = section_end(starts_at, (uint64_t)header.largest + 2);
    header.bytes = minima_at;
    for (uint32_t entries = count; entries > CORPUS_BLOCK;)
        header.bytes = section_end(header.bytes, entries = blocks(entries));
    char *file = calloc(1, header.bytes);
    if (!file)
        return NULL;
    header.header_crc = crc32((const uint8_t *)&header, offsetof(corpus_header, header_crc));
    memcpy(file, &header, sizeof header);
    memcpy(file + tokens_at, stream, size * sizeof(int32_t));
    uint32_t *suffixes = (uint32_t *)(void *)(file + suffixes_at), *to = suffixes;
    for (uint32_t i = 0; i < size; i++)
        if (stream[i] != CORPUS_END)
            *to++ = i;
    sorted_header = &header;
    sorted_tokens = stream;
    qsort(suffixes, count, sizeof(uint32_t), compare_suffixes);
    uint32_t *starts = (uint32_t *)(void *)(file + starts_at);
    for (uint32_t token = 0, i = 0; token <= header.largest + 1; token++) {
        while (i < count && (uint32_t)stream[suffixes[i]] < token)
            i++;
        starts[token] = i;
    }
    const uint32_t *below = suffixes;
    for (uint32_t entries = count; entries > CORPUS_BLOCK;) {
        uint32_t *minima = (uint32_t *)(void *)(file + minima_at), over = blocks(entries);
        for (uint32_t i = 0; i < over; i++) {
            minima[i] = UINT32_MAX;
            for (uint32_t j = i * CORPUS_BLOCK; j < entries && j < (i + 1) * CORPUS_BLOCK; j++)
                minima[i] = below[j] < minima[i] ? below[j] : minima[i];
        }
        minima_at = section_end(minima_at, entries = over);
        below = minima;
    }
    *bytes = header.bytes;
    return file;
}

#endif
