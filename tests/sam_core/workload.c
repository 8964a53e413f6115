// SPDX-License-Identifier: Apache-2.0
//
// A fixed workload over all rules: workload CORPUS. Prints hashes of all drafts, of what was learned and of
// the saved pool, which must be the same on every platform. Run it in an empty folder.

#include "persist.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"

enum { LIVES = 3, MEMBERS = 4, PROMPT = 40, STEPS = 60, WIDTH = 20, VOCABULARY = 50000 };

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001B3);
    return hash;
}

// A token that often is what followed the same token before: texts repeat themselves, each other and the
// corpus.
static int32_t next_token(int32_t last) {
    if (draw(5) == 0)
        return (int32_t)draw(VOCABULARY);
    return (int32_t)((uint32_t)last * 48271u % 97 * 500 + draw(2) * draw(2));
}

static uint64_t life(pool *p, const int32_t *prompt, bool tree, uint64_t hash) {
    int32_t slots[MEMBERS], last[MEMBERS], draft[MEMBERS][WIDTH], parents[MEMBERS][WIDTH],
        lengths[MEMBERS] = {0};
    float scores[MEMBERS][WIDTH];
    pool_error error;
    for (uint32_t i = 0; i < MEMBERS; i++) {
        uint32_t slot;
        CHECK(pool_open(p, prompt, PROMPT, i < 3 ? POOL_BY_PROMPT : POOL_PRIVATE, NULL, 0, &slot) == POOL_OK);
        slots[i] = (int32_t)slot;
        last[i] = prompt[PROMPT - 1];
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        int32_t tokens[MEMBERS * 4], counts[MEMBERS], k[MEMBERS], size = 0;
        for (uint32_t i = 0; i < MEMBERS; i++) {
            counts[i] = 1 + (int32_t)draw(4);
            k[i] = (int32_t)draw(WIDTH + 1);
            for (int32_t j = 0; j < counts[i]; j++) {
                bool agrees = !tree && j < lengths[i] && draw(3);
                last[i] = tokens[size++] = agrees ? draft[i][j] : next_token(last[i]);
            }
        }
        pool_drafts out = {draft[0],     tree ? parents[0] : NULL, scores[0], lengths, WIDTH, NULL, NULL,
                           step % 3 == 1};
        pool_tokens packed = {tokens, (size_t)size, NULL, 0};
        CHECK(pool_step(p, slots, MEMBERS, &packed, counts, k, false, &out, &error) == POOL_OK);
        for (uint32_t i = 0; i < MEMBERS; i++) {
            size_t count = (size_t)lengths[i];
            hash = hash_bytes(hash, draft[i], count * sizeof(int32_t));
            hash = hash_bytes(hash, scores[i], count * sizeof(float));
            if (tree)
                hash = hash_bytes(hash, parents[i], count * sizeof(int32_t));
        }
    }
    for (uint32_t i = 0; i < MEMBERS; i++)
        CHECK(pool_close(p, slots[i], i != 1, &error) == POOL_OK);
    return hash;
}

static uint64_t hash_file(const char *name) {
    FILE *file = fopen(name, "rb");
    CHECK(file);
    unsigned char buffer[4096];
    uint64_t hash = 1;
    for (size_t size; (size = fread(buffer, 1, sizeof buffer, file)) > 0;)
        hash = hash_bytes(hash, buffer, size);
    fclose(file);
    return hash;
}

int main(int count, char **arguments) {
    static const char *const names[] = {"oldest", "newest", "count", "suffix", "blend"};
    CHECK(count == 2);
    for (int rule = RULE_OLDEST; rule <= RULE_BLEND; rule++)
        for (int tree = 0; tree < 2; tree++) {
            corpus c;
            const char *reason;
            pool p;
            int32_t prompts[2][PROMPT];
            uint64_t hash = 1, drafted = 0, accepted = 0;
            CHECK(corpus_open(&c, arguments[1], &reason) == CORPUS_OK);
            unsigned sources = 1 << RULE_REQUEST | 1 << RULE_GROUP | 1 << RULE_HISTORY | 1 << RULE_COMMON;
            CHECK(pool_init(&p, SIZE_MAX, (rule_name)rule, sources, &c, 0.002f));
            for (uint32_t i = 0; i < PROMPT; i++)
                for (uint32_t j = 0; j < 2; j++)
                    prompts[j][i] = next_token(i ? prompts[j][i - 1] : 7);
            for (uint32_t i = 0; i < LIVES; i++)
                hash = life(&p, prompts[i % 2], tree, hash);
            size_t bytes;
            const void *learned = rule_model_learned(p.model, &bytes);
            CHECK(persist_save(&p, "workload.pool") == PERSIST_OK);
            for (uint32_t i = 0; i < RULE_SOURCES; i++) {
                // The workload reaches every source that the rule has.
                CHECK(p.drafted[i] || (i == RULE_COMMON && rule != RULE_BLEND));
                drafted += p.drafted[i];
                accepted += p.accepted[i];
            }
            printf("%s %s: %llu drafted, %llu accepted, drafts %016llx, learned %016llx, saved %016llx\n",
                   names[rule], tree ? "tree" : "chain", (unsigned long long)drafted,
                   (unsigned long long)accepted, (unsigned long long)hash,
                   (unsigned long long)hash_bytes(1, learned, bytes),
                   (unsigned long long)hash_file("workload.pool"));
            pool_free(&p);
        }
    return 0;
}
