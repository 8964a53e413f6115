// SPDX-License-Identifier: Apache-2.0
//
// Turns bytes into a file: a saved pool or a corpus, either all of it or parts with correct checksums. Uses the
// file if it can be loaded.

#include "target.h"

enum { LARGEST = 1 << 20 };

static unsigned char buffer[LARGEST];
static size_t filled;                  // bytes in the buffer
static unsigned char learned[1 << 20]; // the tables of a new pool
static size_t learned_bytes;

static void write_file(const char *name, const void *data, size_t bytes) {
    int file = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    CHECK(file >= 0 && write(file, data, bytes) == (ssize_t)bytes && close(file) == 0);
}

int LLVMFuzzerInitialize(int *count, char ***arguments) {
    (void)count;
    (void)arguments;
    rule_model *fresh = malloc(rule_model_bytes());
    CHECK(fresh);
    rule_model_init(fresh, RULE_BLEND);
    const void *prior = rule_model_learned(fresh, &learned_bytes);
    CHECK(learned_bytes <= sizeof learned);
    memcpy(learned, prior, learned_bytes);
    free(fresh);
    atexit(print_hash);
    return 0;
}

// A number of 32 bits, mostly a small one.
static uint32_t next_unit(input *in) {
    uint32_t byte = next_byte(in);
    switch (byte) {
    case 255:
        return UINT32_MAX;
    case 254:
        return INT32_MAX;
    case 253:
        return SAM_MAX_PLACES;
    case 252:
        return 1u << 31;
    case 251: {
        uint32_t low = next_two(in);
        return low | next_two(in) << 16;
    }
    default:
        return byte;
    }
}

// Fills a block with units from the input, then with zeros.
static void fill_units(input *in, unsigned char *block, size_t units) {
    memset(block, 0, units * 4);
    for (; in->left && units; units--, block += 4) {
        uint32_t unit = next_unit(in);
        memcpy(block, &unit, 4);
    }
}

// ---- saved pools

// Adds the sound number or, rarely, another one. Returns what it added.
static uint32_t add_number(input *in, uint32_t sound) {
    uint32_t number = next_byte(in) < 255 ? sound : next_unit(in);
    memcpy(buffer + filled, &number, 4);
    filled += 4;
    return number;
}

static void add_tokens(input *in, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        add_number(in, next_byte(in) % 4);
}

static void add_group(input *in) {
    uint32_t kind = 1 + next_byte(in) % 2, texts = 1 + next_byte(in) % 4, key = next_byte(in) % 6;
    add_number(in, kind);
    add_number(in, texts);
    add_number(in, kind == POOL_BY_PROMPT ? key * 4 : key);
    add_number(in, 0);
    add_tokens(in, kind == POOL_BY_PROMPT ? key : (key + 3) / 4);
    for (; texts; texts--) {
        uint32_t prompt = kind == POOL_BY_PROMPT ? key : next_byte(in) % 4;
        uint32_t answer = next_byte(in) % 40 * (next_byte(in) % 8);
        prompt = add_number(in, prompt);
        add_number(in, prompt + answer);
        add_tokens(in, kind == POOL_BY_PROMPT ? answer : (prompt + answer) % 512);
    }
}

// Writes a whole file to `buffer`: a header, learned tables with a few changes, groups from the input.
static size_t make_pool_file(input *in) {
    static const unsigned choices[4] = {
        1 << RULE_GROUP, 1 << RULE_GROUP | 1 << RULE_REQUEST, 1 << RULE_GROUP | 1 << RULE_HISTORY,
        1 << RULE_GROUP | 1 << RULE_REQUEST | 1 << RULE_HISTORY | 1 << RULE_COMMON};
    persist_header header = {
        .magic = PERSIST_MAGIC, .version = PERSIST_VERSION, .order = PERSIST_ORDER, .learned = learned_bytes};
    uint32_t first = next_byte(in), groups = next_byte(in) % 8;
    header.rule = first < 250 ? first % 5 : first;
    header.sources = first < 250 ? choices[first / 5 % 4] : next_byte(in) % 32;
    header.groups = next_byte(in) < 250 ? groups : next_unit(in);
    header.vocab_size = first % 4 == 3 ? first / 4 : 0;
    filled = sizeof header + learned_bytes;
    memcpy(buffer + sizeof header, learned, learned_bytes);
    for (uint32_t changes = next_byte(in) % 4; changes; changes--) {
        uint32_t place = next_two(in) * 12,
                 value = next_unit(in); // also in the last learned table
        memcpy(buffer + sizeof header + place % learned_bytes, &value, 4);
    }
    while (groups--)
        add_group(in);
    while (filled % CHECKSUM)
        add_number(in, 0);
    header.bytes = filled + CHECKSUM;
    memcpy(buffer, &header, sizeof header);
    uint64_t sum = checksum(0, buffer, filled);
    memcpy(buffer + filled, &sum, sizeof sum);
    return header.bytes;
}

static bool load(pool *p, size_t memory, const char *name) {
    persist_file file;
    const char *reason = NULL;
    persist_status status = persist_open(&file, name, &reason);
    CHECK(status != PERSIST_SYSTEM && (status == PERSIST_OK || reason));
    if (status != PERSIST_OK)
        return false;
    CHECK(pool_init(p, memory, (rule_name)file.header.rule, file.header.sources, NULL, 0));
    p->options.vocab_size = (uint32_t)file.header.vocab_size;
    status = persist_load(&file, p, &reason);
    persist_close(&file);
    CHECK(status != PERSIST_SYSTEM && (status == PERSIST_OK || reason));
    check_pool(p);
    if (status != PERSIST_OK)
        pool_free(p);
    return status == PERSIST_OK;
}

// Opens slots for some of the groups, drafts, and closes them.
static void use_groups(pool *p) {
    pool_error error;
    for (uint32_t turn = 0; turn < 4; turn++) {
        const pool_group *g = turn % 2 ? p->groups.window.newest : p->groups.window.oldest;
        if (!g)
            return;
        uint32_t slot;
        size_t bytes = g->key_bytes;
        pool_key kind = g->kind;
        void *key = malloc(bytes);
        if (bytes)
            memcpy(key, g->key, bytes);
        bool by_prompt = kind == POOL_BY_PROMPT;
        CHECK(pool_open(p, by_prompt ? key : NULL, by_prompt ? bytes / 4 : 0, kind, key, bytes, &slot) ==
              POOL_OK);
        free(key);
        for (int32_t i = 0; i < 3; i++) {
            int32_t number = (int32_t)slot, tokens[2] = {i, i % 2}, count = 2, k = 5, draft[RULE_MAX_DRAFT];
            uint32_t drafted;
            CHECK(checked_step(p, &number, 1, tokens, 2, &count, &k, true, true, 5, draft, &drafted) ==
                  POOL_OK);
        }
        check_pool(p);
        CHECK(pool_close(p, slot, turn < 2, &error) == POOL_OK);
        check_pool(p);
    }
}

static void try_pool(input *in) {
    static pool p, again;
    uint32_t form = next_byte(in);
    if (form % 16 == 0) {
        size_t bytes = in->left < LARGEST ? in->left : LARGEST;
        write_file("file", in->data, bytes);
    } else {
        write_file("file", buffer, make_pool_file(in));
    }
    if (!load(&p, form & 2 ? pool_min_bytes() + form * 64 : PLENTY, "file"))
        return;
    use_groups(&p);
    CHECK(save_pool(&p, "saved") == PERSIST_OK);
    add_file_to_hash("saved");
    CHECK(load(&again, PLENTY, "saved"));
    CHECK(again.stats.groups <= p.stats.groups &&
          again.stats.tokens <= p.stats.tokens); // texts without an answer are not saved
    CHECK(save_pool(&again, "file") == PERSIST_OK);
    CHECK(hash_of_file("saved") == hash_of_file("file"));
    pool_free(&again);
    pool_free(&p);
}

// ---- corpora

// Any header that is sound by its checksum, and a body from the input.
static size_t make_corpus_file(input *in) {
    corpus_header header = {.magic = CORPUS_MAGIC, .version = CORPUS_VERSION, .order = CORPUS_ORDER};
    header.size = next_unit(in);
    header.texts = next_unit(in);
    header.largest = next_unit(in);
    header.shift = next_byte(in) % 40;
    header.bytes = LARGEST;
    if (header.texts < header.size && header.size < 5000 && header.largest < 50000 && header.shift < 32) {
        uint32_t count = header.size - header.texts;
        header.bytes = section_end(section_end(CORPUS_ALIGN, header.size), count);
        header.bytes = section_end(header.bytes, (uint64_t)(header.largest >> header.shift) + 2);
        for (uint32_t entries = count; entries > CORPUS_BLOCK;)
            header.bytes = section_end(header.bytes, entries = blocks(entries));
    }
    fill_units(in, buffer + CORPUS_ALIGN, (header.bytes - CORPUS_ALIGN) / 4);
    header.header_crc = crc32((const uint8_t *)&header, offsetof(corpus_header, header_crc));
    memset(buffer, 0, CORPUS_ALIGN);
    memcpy(buffer, &header, sizeof header);
    return header.bytes;
}

// The sound corpus with a few units changed behind the header.
static size_t make_damaged_corpus(input *in) {
    size_t bytes = read_file("corpus", buffer, LARGEST);
    for (uint32_t changes = next_byte(in) % 32; changes; changes--) {
        uint32_t place = next_two(in) * 4, value = next_unit(in);
        memcpy(buffer + CORPUS_ALIGN + place % (bytes - CORPUS_ALIGN), &value, 4);
    }
    return bytes;
}

static void use_corpus(const corpus *c, input *in) {
    static const int32_t strange[] = {CORPUS_END, -2, INT32_MIN, INT32_MAX};
    corpus_context context;
    corpus_start(c, &context);
    for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
        corpus_advance(c, &context, strange[i]);
        CHECK(!context.length || (uint32_t)strange[i] <= c->largest);
    }
    for (uint32_t turn = 0; turn < 60; turn++) {
        corpus_match match = corpus_matched(&context, context.length);
        uint32_t position = corpus_first(c, &match), byte = next_byte(in);
        CHECK(position < c->size);
        corpus_advance(c, &context, byte < 100 ? c->tokens[position] : (int32_t)(byte % 9) - 1);
        CHECK(context.length <= CORPUS_MAX_MATCH);
        for (uint32_t length = 0; length <= context.length; length++) {
            match = corpus_matched(&context, length);
            CHECK(match.low < match.high && match.high <= c->count);
            int32_t tokens[CORPUS_PROBES];
            uint32_t counts[CORPUS_PROBES], most = byte % (CORPUS_PROBES + 1);
            uint32_t found = corpus_next(c, &match, most, tokens, counts);
            CHECK(found <= most);
            for (uint32_t i = 0; i < found; i++)
                CHECK(tokens[i] >= 0 && counts[i] > 0 && counts[i] <= match.high - match.low);
            if (corpus_extend(c, &match, found ? tokens[0] : (int32_t)(byte % 4)))
                CHECK(match.length == length + 1 && match.low < match.high && match.high <= c->count);
        }
    }
}

// Drafts from the corpus by every rule.
static void draft_from_corpus(input *in) {
    static pool p;
    damaged_corpus = true;
    static const rule_name rules[] = {RULE_OLDEST, RULE_NEWEST, RULE_SUFFIX, RULE_BLEND};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        corpus c;
        const char *reason;
        uint32_t slot, drafted = 0;
        int32_t draft[RULE_MAX_DRAFT];
        CHECK(corpus_open(&c, "file", &reason) == CORPUS_OK);
        CHECK(pool_init(&p, PLENTY, rules[i], 1 << RULE_REQUEST, &c, 0));
        CHECK(pool_open(&p, NULL, 0, POOL_PRIVATE, NULL, 0, &slot) == POOL_OK);
        for (uint32_t turn = 0; turn < 8; turn++) {
            uint32_t byte = next_byte(in);
            int32_t number = (int32_t)slot, token = byte & 1 && drafted ? draft[0] : (int32_t)(byte / 2 % 8);
            int32_t count = 1, k = (int32_t)(byte % (RULE_MAX_DRAFT + 1));
            CHECK(checked_step(&p, &number, 1, &token, 1, &count, &k, true, true, (size_t)k, draft,
                               &drafted) == POOL_OK);
        }
        check_pool(&p);
        pool_free(&p);
    }
    damaged_corpus = false;
}

static void try_corpus(input *in) {
    uint32_t form = next_byte(in) % 32;
    if (form == 0)
        write_file("file", in->data, in->left < LARGEST ? in->left : LARGEST);
    else
        write_file("file", buffer, form < 16 ? make_corpus_file(in) : make_damaged_corpus(in));
    corpus c;
    const char *reason = NULL;
    corpus_status status = corpus_open(&c, "file", &reason);
    CHECK(status != CORPUS_SYSTEM && (status == CORPUS_OK || reason));
    if (status != CORPUS_OK)
        return;
    use_corpus(&c, in);
    corpus_close(&c);
    draft_from_corpus(in);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    input in = {data, bytes};
    if (next_byte(&in) & 1)
        try_pool(&in);
    else
        try_corpus(&in);
    CHECK(live_blocks == 0);
    return 0;
}
