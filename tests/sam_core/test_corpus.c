// SPDX-License-Identifier: Apache-2.0
//
// Reads a corpus without Python: test_corpus FILE. The file is copied to a block of exactly its size, so that
// the sanitizers see each access outside it. test_corpus.py compiles this with them and runs it on a corpus
// of tokens 0 .. 3. A check that fails ends the program with a line on stderr.

#define _DEFAULT_SOURCE 1

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static uint8_t *block; // what "the file" holds

static void *test_mmap(size_t bytes, int descriptor) {
    block = malloc(bytes); // aligned for all that a corpus holds
    if (!block || read(descriptor, block, bytes) != (ssize_t)bytes)
        return MAP_FAILED;
    return block;
}

#define mmap(address, bytes, protection, flags, descriptor, offset) test_mmap(bytes, descriptor)
#define munmap(address, bytes) free(address)
#include "corpus.c"

#include "check.h"

// Makes every call on random contexts; returns a number that depends on all results.
static uint64_t use(const corpus *c, uint32_t turns) {
    corpus_context context;
    corpus_start(c, &context);
    uint64_t sum = 0;
    for (uint32_t turn = 0; turn < turns; turn++) {
        // Mostly on along the corpus, so that matches get long.
        corpus_match match = corpus_matched(&context, context.length);
        uint32_t position = corpus_first(c, &match);
        int32_t token = draw(4) ? c->tokens[position] : (int32_t)draw(6) - 1;
        corpus_advance(c, &context, token);
        CHECK(context.length <= CORPUS_MAX_MATCH);
        for (uint32_t length = 0; length <= context.length; length++) {
            match = corpus_matched(&context, length);
            CHECK(match.low < match.high && match.high <= c->count);
            int32_t tokens[CORPUS_PROBES];
            uint32_t counts[CORPUS_PROBES], most = draw(CORPUS_PROBES + 1);
            uint32_t found = corpus_next(c, &match, most, tokens, counts), total = 0;
            CHECK(found <= most);
            for (uint32_t i = 0; i < found; i++) {
                CHECK(tokens[i] >= 0 && counts[i] > 0);
                total += counts[i];
                sum = sum * 31 + (uint32_t)tokens[i] + counts[i];
            }
            CHECK(total <= match.high - match.low);
            CHECK(corpus_first(c, &match) < c->size);
            if (corpus_extend(c, &match, found ? tokens[0] : 0))
                CHECK(match.length == length + 1 && match.low < match.high);
        }
    }
    return sum;
}

static void test_results_depend_on_the_file_alone(corpus *c) {
    uint32_t state = random_state;
    uint64_t sum = use(c, 2000);
    random_state = state;
    CHECK(use(c, 2000) == sum);
}

static void test_strange_tokens_leave_the_empty_match(const corpus *c) {
    static const int32_t strange[] = {CORPUS_END, -2, INT32_MIN, INT32_MAX, 4, 1 << 18};
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
        corpus_context context;
        corpus_start(c, &context);
        corpus_advance(c, &context, 0);
        CHECK(context.length == 1);
        corpus_match match = corpus_matched(&context, 1);
        CHECK(!corpus_extend(c, &match, strange[i]) && match.length == 1);
        corpus_advance(c, &context, strange[i]);
        CHECK(context.length == 0 && context.at[0].low == 0 && context.at[0].high == c->count);
    }
}

// Wrong bytes behind the header give wrong drafts at worst.
static void test_damaged_bodies_are_safe(const corpus *c) {
    uint8_t *sound = malloc(c->bytes);
    CHECK(sound);
    memcpy(sound, block, c->bytes);
    for (uint32_t turn = 0; turn < 400; turn++) {
        for (uint32_t i = 0; i < 1 + turn; i++) {
            uint32_t at = CORPUS_ALIGN + draw((uint32_t)c->bytes - CORPUS_ALIGN);
            block[at] = draw(2) ? (uint8_t)draw(256) : (uint8_t)(draw(2) * 255);
        }
        corpus_context context;
        corpus_start(c, &context);
        for (uint32_t i = 0; i < 100; i++) {
            corpus_advance(c, &context, (int32_t)draw(4));
            for (uint32_t length = 0; length <= context.length; length++) {
                corpus_match match = corpus_matched(&context, length);
                int32_t tokens[CORPUS_PROBES];
                uint32_t counts[CORPUS_PROBES];
                uint32_t found = corpus_next(c, &match, CORPUS_PROBES, tokens, counts);
                for (uint32_t j = 0; j < found; j++)
                    CHECK(tokens[j] >= 0 && (uint32_t)tokens[j] <= c->largest);
                CHECK(corpus_first(c, &match) < c->size);
                corpus_extend(c, &match, (int32_t)draw(4));
            }
        }
        memcpy(block, sound, c->bytes);
    }
    free(sound);
}

// Headers that only a program would write: sound by their checksum, with numbers that do not fit.
static void test_impossible_headers_are_refused(const corpus *c) {
    corpus_header sound, header;
    memcpy(&sound, block, sizeof sound);
    for (uint32_t turn = 0; turn < 2000; turn++) {
        header = sound;
        static const uint32_t odd[] = {0, 1, 2, 31, 32, 63, 64, 65, 4096, INT32_MAX, 1u << 31, UINT32_MAX};
        uint32_t *fields[] = {&header.size, &header.texts, &header.largest, &header.shift};
        for (uint32_t i = 0; i < 1 + draw(4); i++)
            *fields[draw(4)] = draw(2) ? odd[draw(12)] : draw(UINT32_MAX);
        header.header_crc = crc32((const uint8_t *)&header, offsetof(corpus_header, header_crc));
        memcpy(block, &header, sizeof header);
        corpus other = {0};
        const char *reason = lay_out(&other, (const corpus_header *)(const void *)block, c->bytes);
        if (!reason) // other numbers of the same size in all
            use(&other, 3);
        else
            CHECK(strstr(reason, "impossible"));
    }
    memcpy(block, &sound, sizeof sound);
}

int main(int count, char **arguments) {
    CHECK(count == 2);
    random_state = 5;
    corpus c;
    const char *reason = NULL;
    CHECK(corpus_open(&c, arguments[1], &reason) == CORPUS_OK);
    test_results_depend_on_the_file_alone(&c);
    test_strange_tokens_leave_the_empty_match(&c);
    test_damaged_bodies_are_safe(&c);
    test_impossible_headers_are_refused(&c);
    corpus_close(&c);
    corpus_close(&c);
    CHECK(corpus_open(&c, "/nonexistent", &reason) == CORPUS_SYSTEM && errno == ENOENT);
    corpus_close(&c);
    return 0;
}
