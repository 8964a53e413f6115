// SPDX-License-Identifier: Apache-2.0
//
// Turns bytes into operations on a pool: slots open, continue closed texts, step, learn and close, rows are drafted by
// several threads, groups are dropped, the pool is saved and loaded, allocations fail.

#include "target.h"

#include "group.h"

enum {
    REQUEST = 1 << RULE_REQUEST,
    GROUP = 1 << RULE_GROUP,
    HISTORY = 1 << RULE_HISTORY,
    COMMON = 1 << RULE_COMMON
};
enum { MAX_OPEN = 8, MAX_TOKENS = 3000, MAX_OPERATIONS = 400, RUN = 160, PROMPTS = 5 };

typedef struct {
    pool p;
    int32_t open[MAX_OPEN];
    size_t count;
    uint32_t tokens; // appended so far
    int32_t draft[RULE_MAX_DRAFT];
    uint32_t drafted;
    persist_snapshot listed; // to be written later, if is_listed
    bool is_listed;
} state;

int LLVMFuzzerInitialize(int *count, char ***arguments) {
    (void)count;
    (void)arguments;
    test_large = 1 << 12;
    test_table = 16;
    test_fed = test_drafted = 2;
    atexit(print_hash);
    return 0;
}

static bool start_pool(pool *p, size_t memory, rule_name rule, unsigned sources, bool with_corpus,
                       float least) {
    corpus c;
    const char *reason;
    if (with_corpus)
        CHECK(corpus_open(&c, "corpus", &reason) == CORPUS_OK);
    bool done = pool_init(p, memory, rule, sources, with_corpus ? &c : NULL, least);
    if (!done && with_corpus)
        corpus_close(&c);
    return done;
}

static size_t make_prompt(uint32_t which, int32_t *prompt) {
    static const int32_t prompts[PROMPTS][4] = {{0}, {1, 2, 1, 2}, {3, 3, 3, 3}, {0, 1, 2, 3}, {5}};
    static const size_t sizes[PROMPTS] = {0, 4, 4, 4, RUN};
    for (size_t i = 0; i < sizes[which]; i++)
        prompt[i] = prompts[which][i % (which == PROMPTS - 1 ? 1 : 4)];
    return sizes[which];
}

static void open_slot(state *s, input *in) {
    int32_t prompt[RUN];
    uint32_t byte = next_byte(in), slot;
    size_t size = make_prompt(byte % PROMPTS, prompt);
    if (s->count == MAX_OPEN || s->tokens > MAX_TOKENS)
        return;
    pool_status status =
        pool_open(&s->p, prompt, size, (pool_key)(byte / 8 % 3), "names", byte / 32 % 4, &slot);
    CHECK(status == POOL_OK || (status == POOL_NO_MEMORY && fail_at >= 0));
    if (status == POOL_OK)
        s->open[s->count++] = (int32_t)slot;
    s->tokens += (uint32_t)size;
}

// Opens a slot whose prompt continues a closed text of a named group, with or without its last tokens.
static void continue_text(state *s, input *in) {
    uint32_t byte = next_byte(in), lost = next_byte(in) % 48, more = byte / 4 % 8, slot;
    const pool_group *g = group_find(&s->p, POOL_NAMED, "names", byte % 4);
    const pool_text *from = NULL;
    for (uint32_t i = 0; g && i < g->text_count && !(from && i > byte / 32); i++)
        if (g->texts[i] && text_of(g, i)->slot == SAM_NONE && !text_of(g, i)->removed)
            from = text_of(g, i);
    if (!from || s->count == MAX_OPEN || s->tokens > MAX_TOKENS)
        return;
    lost = byte & 128 && lost <= from->body.size ? lost : 0;
    uint32_t size = from->body.size - lost + more;
    int32_t *prompt = malloc((size + 1) * sizeof(int32_t));
    if (size > more)
        memcpy(prompt, from->body.tokens, (size - more) * sizeof(int32_t));
    for (uint32_t i = size - more; i < size; i++)
        prompt[i] = (int32_t)(next_byte(in) % 8);
    uint64_t texts = g->kept;
    bool known = group_find_start(g, prompt, size) != NULL;
    pool_status status = pool_open(&s->p, prompt, size, POOL_NAMED, "names", byte % 4, &slot);
    CHECK(status == POOL_OK || (status == POOL_NO_MEMORY && fail_at >= 0));
    if (status == POOL_OK) {
        const pool_slot *opened = &s->p.slots.items[slot];
        if (opened->drafts && opened->text) {
            CHECK(opened->text->body.size == size && opened->text->prompt_size <= size);
            CHECK(!size || memcmp(opened->text->body.tokens, prompt, size * sizeof(int32_t)) == 0);
            CHECK(!known || !opened->group || opened->group->kept <= texts);
        }
        s->open[s->count++] = (int32_t)slot;
    }
    s->tokens += size;
    free(prompt);
}

// Tokens for one row: given one by one, a run, or the last draft.
static uint32_t take_tokens(state *s, input *in, int32_t *tokens) {
    uint32_t byte = next_byte(in), count = byte % 8;
    if (s->tokens > MAX_TOKENS)
        return 0;
    if (byte / 8 % 4 == 3) {
        count = count * RUN / 8;
        for (uint32_t i = 0; i < count; i++)
            tokens[i] = (int32_t)(i % (1 + byte / 32 % 4));
    } else if (byte / 8 % 4 == 2) {
        count = byte / 32 * 2 < s->drafted ? byte / 32 * 2 : s->drafted;
        memcpy(tokens, s->draft, count * sizeof(int32_t));
    } else {
        for (uint32_t i = 0; i < count; i++) {
            uint32_t value = next_byte(in);
            tokens[i] = value < 250 ? (int32_t)(value % 8) : INT32_MAX - (int32_t)value;
        }
    }
    s->tokens += count;
    return count;
}

static void step(state *s, input *in) {
    int32_t slots[MAX_OPEN], counts[MAX_OPEN], k[MAX_OPEN] = {0}, tokens[MAX_OPEN * RUN];
    uint32_t mask = next_byte(in), form = next_byte(in);
    size_t rows = 0, size = 0, width = form / 8;
    for (size_t i = 0; i < s->count; i++) {
        if (!(mask >> i & 1))
            continue;
        slots[rows] = s->open[i];
        k[rows] = (int32_t)(form & 4 ? width : next_byte(in) % (width + 1));
        counts[rows] = (int32_t)take_tokens(s, in, tokens + size);
        size += (size_t)counts[rows++];
    }
    if (form & 4 && width)
        k[0] = (int32_t)width;
    pool_status status = checked_step(&s->p, slots, rows, tokens, size, counts, k, form & 4, form & 2, width,
                                      s->draft, &s->drafted);
    CHECK(status == POOL_OK || (status == POOL_NO_MEMORY && fail_at >= 0));
}

static void append_one(state *s, input *in) {
    int32_t tokens[RUN];
    uint32_t which = next_byte(in), count = take_tokens(s, in, tokens);
    pool_error error;
    if (s->count)
        CHECK(pool_append(&s->p, s->open[which % s->count], tokens, count, &error) == POOL_OK);
}

static void close_slot(state *s, input *in) {
    uint32_t byte = next_byte(in);
    pool_error error;
    if (!s->count)
        return;
    size_t at = byte / 2 % s->count;
    int32_t slot = s->open[at];
    CHECK(pool_close(&s->p, slot, byte % 2, &error) == POOL_OK);
    s->open[at] = s->open[--s->count];
    CHECK(pool_close(&s->p, slot, byte % 2, &error) == POOL_BAD_SLOT && error.value == slot);
}

static void drop(state *s, input *in) {
    int32_t prompt[RUN];
    uint32_t byte = next_byte(in);
    size_t size = make_prompt(byte % PROMPTS, prompt);
    pool_error error;
    bool found;
    pool_status status =
        byte & 128 ? pool_drop(&s->p, POOL_NAMED, "names", byte / 32 % 4, &found, &error)
                   : pool_drop(&s->p, POOL_BY_PROMPT, prompt, size * sizeof(int32_t), &found, &error);
    CHECK(status == POOL_OK || (status == POOL_GROUP_IN_USE && found && error.value > 0));
}

// Writes what was listed before, including texts that the pool has freed since.
static void write_listed(state *s) {
    const char *reason = NULL;
    persist_file file;
    if (!s->is_listed)
        return;
    persist_status status = persist_write(&s->listed, "listed");
    CHECK(status == PERSIST_OK || (fail_at >= 0 && errno == ENOMEM));
    if (status == PERSIST_OK) {
        CHECK(persist_open(&file, "listed", &reason) == PERSIST_OK);
        CHECK(file.header.texts == s->listed.header.texts && file.header.tokens == s->listed.header.tokens);
        persist_close(&file);
    }
    while (persist_release(&s->listed, 2))
        ;
    s->is_listed = false;
}

static void list_or_write(state *s) {
    if (s->is_listed) {
        write_listed(s);
        return;
    }
    s->is_listed = persist_collect(&s->p, &s->listed);
    CHECK(s->is_listed || fail_at >= 0);
}

// Saves the pool and loads it into another one, or into itself.
static void save_and_load(state *s, input *in) {
    static pool other;
    uint32_t byte = next_byte(in), number = next_two(in) << 4;
    const char *reason = NULL;
    persist_file file;
    persist_status status = save_pool(&s->p, "saved");
    CHECK(status == PERSIST_OK || (fail_at >= 0 && errno == ENOMEM));
    if (status != PERSIST_OK)
        return;
    add_file_to_hash("saved");
    bool in_place = byte & 2, small = byte & 4, groups = s->p.stats.groups;
    pool *to = in_place ? &s->p : &other;
    CHECK(persist_open(&file, "saved", &reason) == PERSIST_OK);
    CHECK(file.header.rule == s->p.options.rule && file.header.sources == s->p.options.sources);
    CHECK(file.header.groups <= s->p.stats.groups && (groups || !file.header.tokens));
    if (in_place) {
        write_listed(s);
        pool_free(&s->p);
        CHECK(s->p.memory.used == 0);
        s->count = 0;
        fail_at = -1;
    }
    bool started = start_pool(to, small ? pool_min_bytes() + number : PLENTY, (rule_name)file.header.rule,
                              file.header.sources, byte & 8, 0.01f * (float)(byte / 16));
    CHECK(started || fail_at >= 0);
    if (started) {
        CHECK(persist_load(&file, to, &reason) == PERSIST_OK);
        check_pool(to);
        if (!small && fail_at < 0)
            CHECK(to->stats.groups == file.header.groups && to->stats.tokens == file.header.tokens);
        if (!in_place)
            pool_free(to);
    }
    persist_close(&file);
}

static void operate(state *s, input *in) {
    uint32_t byte = next_byte(in);
    switch (byte % 16) {
    case 0:
    case 1:
    case 2:
        open_slot(s, in);
        break;
    case 3:
    case 4:
        close_slot(s, in);
        break;
    case 5:
        drop(s, in);
        break;
    case 6: // rarely: one takes as long as a hundred other operations
        if (byte / 16 % 4 == 0)
            save_and_load(s, in);
        else if (byte / 16 % 4 == 1)
            list_or_write(s);
        else
            continue_text(s, in);
        break;
    case 8: // one allocation fails soon, or all do from then on
        fail_at = allocations + next_byte(in) % 64;
        keep_failing = byte & 16;
        is_hashed &= s->p.threads.count == 1; // otherwise threads decide what fails
        break;
    case 9:
        fail_at = -1;
        break;
    case 10:
        append_one(s, in);
        break;
    default:
        step(s, in);
    }
    if (byte >= 224)
        check_pool(&s->p);
}

// Sets the largest weights that a model can reach. After further learning, it must still be a valid model.
static void set_extreme_weights(rule_model *m) {
    size_t bytes;
    model_learned *learned = rule_model_learned(m, &bytes);
    for (uint32_t set = 0; set < MODEL_SETS; set++)
        for (uint32_t i = 0; i < MODEL_INPUTS; i++)
            learned->weights[set][i] = draw(2) ? MODEL_MAX_WEIGHT : -MODEL_MAX_WEIGHT;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const rule_name rules[] = {RULE_OLDEST, RULE_NEWEST, RULE_BLEND, RULE_SUFFIX, RULE_BLEND};
    static const float thresholds[] = {0, 0, 0.01f, 0.5f};
    static state s;
    input in = {data, size};
    uint32_t first = next_byte(&in), second = next_byte(&in), limit = next_two(&in);
    static const unsigned choices[8] = {GROUP,
                                        REQUEST,
                                        COMMON,
                                        REQUEST | GROUP,
                                        GROUP | HISTORY,
                                        REQUEST | GROUP | HISTORY,
                                        REQUEST | GROUP | HISTORY | COMMON,
                                        GROUP | COMMON};
    unsigned sources = choices[second % 8];
    CHECK(live_blocks == 0);
    is_hashed = true;
    s.count = s.tokens = s.drafted = 0;
    CHECK(start_pool(&s.p, second & 16 ? pool_min_bytes() + limit : PLENTY, rules[first % 5], sources,
                     second & 8, thresholds[first / 5 % 4]));
    if (first & 128) // automata are fed a few tokens at a time
        s.p.step.slice = s.p.step.off_slice = 1 + second / 64 * 20;
    s.p.options.vocab_size = second & 32 ? 1 + limit % 8 : 0;
    if (limit & 256) // rows are fed and drafted in blocks
        s.p.threads.many_rows = 1;
    if (limit & 512)
        s.p.threads.count = 3;
    random_state = 1;
    if (limit & 1024)
        set_extreme_weights(s.p.model);
    for (uint32_t i = 0; in.left && i < MAX_OPERATIONS; i++)
        operate(&s, &in);
    write_listed(&s);
    check_pool(&s.p);
    CHECK(rule_model_valid(s.p.model));
    pool_free(&s.p);
    CHECK(s.p.memory.used == 0 && live_blocks == 0);
    fail_at = -1;
    return 0;
}
