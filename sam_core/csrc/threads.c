// SPDX-License-Identifier: Apache-2.0

#define _POSIX_C_SOURCE 200809L // signals

#include "threads.h"

#include "account.h"
#include "group.h"
#include "prefetch.h"
#include "row.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { FREE_SHARE = 16 }; // blocks run if 1/16 of the memory is free

// ---- the state of a team

typedef struct thread_team thread_team;

enum { IDLE, PREPARING, READY };

// The blocks of one thread, which others take as well when they have none left.
typedef struct {
    alignas(CACHE_LINE) atomic_uint state; // READY: all threads may take blocks
    atomic_uint taken;                     // blocks, the first ones
    uint32_t first, count;
    uint32_t prepared; // the first of them that need nothing before they are drafted
} range;

typedef struct {
    pool *p;
    const pool_drafts *out;
    const uint32_t *order; // rows, those of a group one after another if they are to be fed
    uint32_t count, block_rows;
    uint32_t threads; // that work on it
    bool feeds, drafts;
    size_t share; // bytes that a block may allocate when it is fed, and when it is drafted
    range ranges[POOL_MAX_THREADS];
} job;

static pool_row *row_at(const job *j, uint32_t i) { return &j->p->step.rows[j->order[i]]; }

static pool_slot *slot_at(const job *j, uint32_t i) { return &j->p->slots.items[row_at(j, i)->slot]; }

typedef struct {
    thread_team *team;
    rule_work *work;
    sem_t calls;       // posted for each turn of a helper
    uint32_t called;   // turns in this step
    sam_memory memory; // of the current block
    bool refused;      // the block has no more memory
    struct {           // of all blocks
        size_t used;
        uint64_t visited;
        int64_t spent; // work
        draft_counts counts;
    } sum;
} worker;

struct thread_team {
    pool *p;
    _Atomic(job *) job;               // NULL: none
    worker workers[POOL_MAX_THREADS]; // the first is the caller's
    pthread_t threads[POOL_MAX_THREADS];
    uint32_t helpers; // threads that exist
    pid_t process;    // in which they do
    bool ends;
    sem_t done;               // posted after each turn of a helper
    size_t rows;              // to learn from
    atomic_uint open_lessons; // bits of lessons that nobody learns yet
    atomic_uint unlearned;    // lessons
    pthread_mutex_t lock;
    pthread_cond_t has_learned;
};

static bool refuse(void *owner) {
    ((worker *)owner)->refused = true;
    return false;
}

// The next token of a text for an index.
typedef struct {
    sam_index *index;
    sam_cursor *cursor;
    const pool_text *text;
    uint32_t number; // of the text in the index
    sam_prefetched prefetched;
} token;

// Appends tokens with the block's memory.
static void append_tokens(worker *w, token *tokens, uint32_t count) {
    for (staged_walk walk = walk_in_stages(count, SAM_APPEND_STAGES, 1); !w->refused && next_stage(&walk);) {
        token *t = &tokens[walk.item];
        if (walk.stage < SAM_APPEND_STAGES) {
            sam_prefetch_append(t->index, t->cursor, t->text->body.tokens[t->cursor->length], walk.stage,
                                &t->prefetched);
            continue;
        }
        sam_memory *memory = t->index->memory;
        t->index->memory = &w->memory;
        w->sum.spent += t->index->node_count < POOL_LARGE ? 1 : POOL_LARGE_COST;
        w->refused = !sam_index_append(t->index, t->cursor, t->number, t->cursor->length);
        t->index->memory = memory;
    }
}

// Feeds a block, without a limit of work. Each pass over the rows appends the next token of each request's text, and
// of the first of a group's texts that has one, so that neighbouring tokens seldom are of the same text.
static void feed_tokens(worker *w, const job *j, uint32_t from, uint32_t to) {
    enum { TOKENS = 128 };
    token tokens[TOKENS + RULE_INDEXES];
    for (bool more = true; more && !w->refused;) {
        uint32_t count = 0;
        const pool_group *last = NULL;
        more = false;
        for (uint32_t i = from; i < to; i++) {
            pool_slot *slot = slot_at(j, i);
            pool_text *text = slot->text;
            pool_group *g = slot->group;
            if (slot->request.memory && slot->cursor.length < text->body.size)
                tokens[count++] = (token){&slot->request, &slot->cursor, text, .number = 0};
            if (g && g != last && g->index.memory && text->cursor.length < text->body.size) {
                tokens[count++] = (token){&g->index, &text->cursor, text, .number = text->number};
                last = g;
            }
            if (count < TOKENS && i + 1 < to)
                continue;
            append_tokens(w, tokens, count);
            more |= count > 0;
            count = 0;
        }
    }
}

static void begin(worker *w, const job *j) {
    w->memory = (sam_memory){.limit = j->share, .reclaim = refuse, .owner = w};
    w->refused = false;
}

static void end(worker *w) {
    w->sum.used += w->memory.used;
    w->sum.visited += w->memory.work;
}

static void feed_block(worker *w, const job *j, uint32_t from, uint32_t to) {
    begin(w, j);
    feed_tokens(w, j, from, to);
    for (uint32_t i = from; !w->refused && i < to; i++) {
        row_at(j, i)->fed = true;
        slot_at(j, i)->lacks_memory = false;
    }
    end(w);
}

// Finds the matches of a block's rows, whose searches take their steps in turn.
static void match_block(const job *j, uint32_t from, uint32_t to) {
    const pool *p = j->p;
    row_search searches[RULE_INDEXES * THREADS_DRAFTED];
    for (uint32_t i = from; i < to; i++)
        prefetch_bytes(slot_at(j, i), sizeof(pool_slot));
    for (uint32_t i = from; i < to; i++) {
        const pool_slot *slot = slot_at(j, i);
        prefetch_bytes(slot->text, sizeof(pool_text));
        if (slot->group)
            prefetch_bytes(&slot->group->index, sizeof(sam_index));
    }
    uint32_t count = 0;
    for (uint32_t i = from; i < to; i++)
        count += row_begin_match(p, row_at(j, i), &searches[count]);
    while (count) {
        uint32_t left = 0;
        for (uint32_t i = 0; i < count; i++)
            if (row_search_step(&searches[i]))
                searches[left++] = searches[i];
        count = left;
    }
}

// The first row of a block: if it is to be fed, the first that does not belong to the group of the row before it.
static uint32_t block_start(const job *j, uint32_t block) {
    uint32_t at = block * j->block_rows;
    while (j->feeds && at && at < j->count && slot_at(j, at)->group &&
           slot_at(j, at)->group == slot_at(j, at - 1)->group)
        at++;
    return at < j->count ? at : j->count;
}

// What a block needs before it is drafted.
static void prepare_block(worker *w, const job *j, uint32_t block) {
    uint32_t from = block_start(j, block), to = block_start(j, block + 1);
    if (j->feeds)
        feed_block(w, j, from, to);
    else
        match_block(j, from, to);
}

static void draft_block(worker *w, const job *j, uint32_t block) {
    pool *p = j->p;
    uint32_t from = block_start(j, block), to = block_start(j, block + 1);
    begin(w, j);
    uint32_t rows[RULE_BATCH], count = 0;
    for (uint32_t i = from; !w->refused && i < to; i++) {
        if ((i - from) % THREADS_DRAFTED == 0)
            for (unsigned stage = 0; stage < DRAFT_STAGES; stage++)
                for (uint32_t at = i; at < to && at < i + THREADS_DRAFTED; at++)
                    prefetch_draft(p, row_at(j, at), stage);
        const pool_row *row = row_at(j, i);
        pool_group *g = p->slots.items[row->slot].group;
        if (!j->feeds || (row->fed && (!g || group_drop_fed(g))))
            rows[count++] = j->order[i];
        if (!count || (count < RULE_BATCH && i + 1 < to))
            continue;
        uint32_t done = row_draft(p, rows, count, j->out, w->work, &w->memory, &w->sum.counts);
        for (uint32_t at = 0; at < done; at++)
            p->step.rows[rows[at]].drafted = true;
        count = 0;
    }
    end(w);
}

// ---- learning

static void mark_group(const pool *p, pool_row *row) {
    row->in_group = has_group_index(&p->slots.items[row->slot]);
}

// Learns the lessons from `first` to before `end` from the tokens of the rows. marked: so are their groups.
static void learn_rows(pool *p, size_t rows, int first, int end, bool marked) {
    for (staged_walk walk = walk_rows(rows, LEARN_STAGES, ROWS_AHEAD); next_stage(&walk);) {
        pool_row *row = &p->step.rows[walk.item];
        if (walk.stage < LEARN_STAGES) {
            prefetch_learn(p, row, walk.stage, first, end);
            continue;
        }
        if (!marked)
            mark_group(p, row);
        row_learn(p, &p->slots.items[row->slot], row->tokens, row->count, first, end, row->in_group);
    }
}

static uint32_t number_of(const worker *w) { return (uint32_t)(w - w->team->workers); }

// Learns the lessons that nobody else does. Each helper begins with the same one in all steps, as its cache has what
// that changes.
static void learn(worker *w) {
    thread_team *t = w->team;
    for (uint32_t i = 0; i < RULE_LESSONS; i++) {
        int lesson = (int)((number_of(w) + i) % RULE_LESSONS);
        unsigned bit = 1u << lesson;
        if (!(atomic_load(&t->open_lessons) & bit) || !(atomic_fetch_and(&t->open_lessons, ~bit) & bit))
            continue;
        learn_rows(t->p, t->rows, lesson, lesson + 1, true);
        pthread_mutex_lock(&t->lock);
        if (atomic_fetch_sub(&t->unlearned, 1) == 1)
            pthread_cond_broadcast(&t->has_learned);
        pthread_mutex_unlock(&t->lock);
    }
}

static void wait_until_learned(worker *w) {
    thread_team *t = w->team;
    learn(w);
    pthread_mutex_lock(&t->lock);
    while (atomic_load(&t->unlearned))
        pthread_cond_wait(&t->has_learned, &t->lock);
    pthread_mutex_unlock(&t->lock);
}

void threads_wait_until_learned(pool *p) {
    if (p->threads.team)
        wait_until_learned(&p->threads.team->workers[0]);
}

// Prepares a thread's blocks until all is learned.
static void prepare_range(worker *w, job *j, range *r) {
    unsigned state = IDLE;
    if (!atomic_compare_exchange_strong(&r->state, &state, PREPARING))
        return; // another thread has begun to take its blocks
    for (; r->prepared < r->count && atomic_load(&w->team->unlearned); r->prepared++)
        prepare_block(w, j, r->first + r->prepared);
    atomic_store(&r->state, READY);
}

// Whether blocks may be taken: those of a thread that has not begun, but not of one that is preparing them.
static bool is_open(range *r) {
    unsigned state = IDLE;
    return atomic_compare_exchange_strong(&r->state, &state, READY) || state == READY;
}

// Drafts no block before all is learned; meanwhile feeds the thread's own blocks, or finds their matches.
static void run_blocks(worker *w, job *j) {
    learn(w);
    uint32_t number = number_of(w);
    if (j->drafts) {
        if (number < j->threads)
            prepare_range(w, j, &j->ranges[number]);
        wait_until_learned(w);
    }
    for (uint32_t i = 0; i < j->threads; i++) {
        range *r = &j->ranges[(number + i) % j->threads];
        uint32_t at;
        while (is_open(r) && (at = atomic_fetch_add(&r->taken, 1)) < r->count) {
            if (at >= r->prepared)
                prepare_block(w, j, r->first + at);
            if (j->drafts)
                draft_block(w, j, r->first + at);
        }
    }
}

static void wait_for(sem_t *semaphore) {
    while (sem_wait(semaphore)) // interrupted by a signal
        ;
}

static void *help(void *argument) {
    worker *w = argument;
    thread_team *t = w->team;
    for (wait_for(&w->calls); !t->ends; wait_for(&w->calls)) {
        learn(w);
        job *j = atomic_load(&t->job);
        if (j)
            run_blocks(w, j);
        sem_post(&t->done);
    }
    return NULL;
}

// Creates threads until there is this number of helpers, or no more can be created.
static void add_helpers(thread_team *t, uint32_t helpers) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // signals are for the program's own threads
    for (; t->helpers < helpers; t->helpers++) {
        worker *w = &t->workers[t->helpers + 1];
        if (!w->work)
            w->work = SAM_REALLOC(NULL, rule_work_bytes());
        if (!w->work || pthread_create(&t->threads[t->helpers], NULL, help, w))
            break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

// Sets *helpers to the number that a job of this many rows gets. Returns false if there is no memory.
static bool gather(pool *p, uint32_t rows, uint32_t *helpers) {
    if (!p->threads.team) {
        thread_team *t = SAM_REALLOC(NULL, sizeof *t);
        if (!t)
            return false;
        *t = (thread_team){.p = p,
                           .workers[0] = {.work = rule_model_work(p->model)},
                           .process = getpid(),
                           .lock = PTHREAD_MUTEX_INITIALIZER,
                           .has_learned = PTHREAD_COND_INITIALIZER};
        sem_init(&t->done, 0, 0);
        for (uint32_t i = 0; i < POOL_MAX_THREADS; i++) {
            t->workers[i].team = t;
            sem_init(&t->workers[i].calls, 0, 0);
        }
        p->threads.team = t;
    }
    uint32_t threads = rows / THREADS_ROWS < p->threads.count ? rows / THREADS_ROWS : p->threads.count;
    *helpers = threads ? threads - 1 : 0;
    if (p->threads.team->helpers < *helpers)
        add_helpers(p->threads.team, *helpers);
    if (p->threads.team->helpers < *helpers)
        *helpers = p->threads.team->helpers;
    return true;
}

void threads_end(pool *p) {
    thread_team *t = p->threads.team;
    p->threads.team = NULL;
    if (!t)
        return;
    uint32_t helpers = t->process == getpid() ? t->helpers : 0; // a fork has no threads
    t->ends = true;
    for (uint32_t i = 0; i < helpers; i++)
        sem_post(&t->workers[i + 1].calls);
    for (uint32_t i = 0; i < helpers; i++)
        pthread_join(t->threads[i], NULL);
    for (uint32_t i = 1; i < POOL_MAX_THREADS; i++)
        SAM_FREE(t->workers[i].work);
    SAM_FREE(t);
}

// Gives the first helpers a turn.
static void call(thread_team *t, uint32_t helpers) {
    for (worker *w = &t->workers[1]; w <= &t->workers[helpers]; w++) {
        w->called++;
        sem_post(&w->calls);
    }
}

// Waits until no helper works.
static void settle(thread_team *t) {
    uint32_t turns = 0;
    for (worker *w = &t->workers[1]; w <= &t->workers[t->helpers]; w++) {
        while (w->called && !sem_trywait(&w->calls)) // nothing is left for a helper that did not wake in time
            w->called--;
        turns += w->called;
        w->called = 0;
    }
    for (; turns; turns--)
        wait_for(&t->done);
}

void threads_learn(pool *p, size_t rows) {
    uint32_t helpers = 0;
    if (!p->step.drafting || rows < p->threads.many_rows || !gather(p, (uint32_t)rows, &helpers) ||
        !helpers) {
        learn_rows(p, rows, 0, RULE_LESSONS, false);
        return;
    }
    thread_team *t = p->threads.team;
    t->rows = rows;
    for (size_t i = 0; i < rows; i++)
        mark_group(p, &p->step.rows[i]);
    atomic_store(&t->unlearned, RULE_LESSONS);
    atomic_store(&t->open_lessons, (1u << RULE_LESSONS) - 1);
    call(t, helpers < RULE_LESSONS ? helpers : RULE_LESSONS);
}

void threads_end_step(pool *p) {
    threads_wait_until_learned(p);
    if (p->threads.team)
        settle(p->threads.team);
}

// Runs all blocks of a job, in this thread and in others.
static void run(job *j) {
    pool *p = j->p;
    thread_team *t = p->threads.team;
    atomic_store(&t->job, j);
    call(t, j->threads - 1);
    run_blocks(&t->workers[0], j);
    settle(t);
    atomic_store(&t->job, NULL);
    for (uint32_t i = 0; i <= t->helpers; i++) {
        worker *w = &t->workers[i];
        p->memory.used += w->sum.used;
        p->memory.work += w->sum.visited;
        p->step.work -= w->sum.spent;
        row_count_drafts(p, &w->sum.counts);
        memset(&w->sum, 0, sizeof w->sum);
    }
}

// Divides the rows of a step into blocks for the threads. False if there are too few rows, or too little free memory.
static bool start(job *j, pool *p, const pool_drafts *out, uint32_t count, bool feeds) {
    if (count < p->threads.many_rows || p->memory.used >= p->memory.limit - p->memory.limit / FREE_SHARE)
        return false;
    uint32_t block_rows = feeds ? THREADS_FED : THREADS_DRAFTED,
             blocks = (count + block_rows - 1) / block_rows;
    uint32_t helpers;
    if (!gather(p, count, &helpers))
        return false;
    *j = (job){.p = p,
               .out = out,
               .order = p->step.order,
               .count = count,
               .block_rows = block_rows,
               .threads = helpers + 1,
               .feeds = feeds,
               .drafts = out != NULL,
               .share = (p->memory.limit - p->memory.used) / blocks / (feeds ? 2 : 1)};
    for (uint32_t i = 0; i < j->threads; i++) {
        uint32_t first = blocks * i / j->threads, end = blocks * (i + 1) / j->threads;
        j->ranges[i] = (range){.first = first, .count = end - first};
    }
    return true;
}

// What the indexes of the drafting rows lack.
typedef struct {
    uint64_t small, large; // tokens of indexes that may become large in this step, or not
    uint64_t new;          // tokens of indexes that are to be begun
} lack;

static void add_lack(lack *l, const sam_index *index, uint32_t tokens) {
    *(index->node_count < POOL_LARGE / 2 ? &l->small : &l->large) += tokens;
}

// Whether a drafting row needs nothing but its new tokens to be fed. Adds what its indexes lack.
static bool is_ready(const pool *p, const pool_slot *slot, lack *l) {
    const pool_text *text = slot->text;
    const pool_group *g = slot->group;
    bool ready = true;
    if (has_source(p, RULE_REQUEST)) {
        ready = slot->request.memory != NULL;
        l->new += ready ? 0 : text->body.size;
        add_lack(l, &slot->request, text->body.size - (ready ? slot->cursor.length : 0));
    }
    if (!g || (!g->index.memory && !group_is_worthwhile(p, g)))
        return ready;
    if (g->index.memory && text->indexed && g->has_prompt) {
        add_lack(l, &g->index, text->body.size - text->cursor.length);
        return ready;
    }
    l->new += g->tokens;
    add_lack(l, &g->index, text->body.size + (g->carrier ? g->carrier->prompt_size : text->prompt_size));
    return false;
}

// Whether the work of this step and the memory suffice for all that the indexes lack, in any order.
static bool suffices(const pool *p, const lack *l) {
    bool stay_small = l->small + l->large < POOL_LARGE / 2;
    uint64_t work = l->small * (stay_small ? 1 : POOL_LARGE_COST) + l->large * POOL_LARGE_COST;
    return (int64_t)work < p->step.work &&
           (!l->new || p->memory.limit - p->memory.used > 2 * account_needed(p, 2 * l->new));
}

// Writes the drafting rows to p->step.order, those of a group one after another in the loops' order, but for those
// that the loops must feed because they or others of their group are not ready. False: the loops must feed all.
static bool order_rows(pool *p, size_t rows, uint32_t *count) {
    lack l = {0};
    for (uint32_t i = 0; i < rows; i++) {
        pool_row *row = &p->step.rows[i];
        const pool_slot *slot = &p->slots.items[row->slot];
        pool_group *g = slot->drafts ? slot->group : NULL;
        if (!row->k || !slot->drafts)
            continue;
        bool ready = is_ready(p, slot, &l);
        if (!ready &&
            (slot->needs || (g && (g->needs || g->lost)))) // it depends on what the rows before it leave
            return false;
        row->next = SAM_NONE;
        row->behind = g && row_is_behind(p, row);
        if (g && g->step == p->step.number)
            p->step.rows[g->last_row].next = i;
        if (g && g->step != p->step.number) {
            g->step = p->step.number;
            g->first_row = i;
        }
        if (g)
            g->last_row = i;
        if (!ready)
            p->step.rows[g ? g->first_row : i].left = true;
    }
    *count = 0;
    for (uint32_t i = 0; i < rows; i++) {
        const pool_slot *slot = &p->slots.items[p->step.rows[i].slot];
        if (!p->step.rows[i].k || !slot->drafts || p->step.rows[i].left ||
            (slot->group && slot->group->first_row != i))
            continue;
        for (int behind = 0; behind < 2; behind++)
            for (uint32_t at = i; at != SAM_NONE; at = p->step.rows[at].next)
                if (p->step.rows[at].behind == behind)
                    p->step.order[(*count)++] = at;
    }
    return suffices(p, &l);
}

void threads_feed(pool *p, size_t rows, const pool_drafts *out) {
    uint32_t count;
    job j;
    if (rows >= p->threads.many_rows && order_rows(p, rows, &count) && start(&j, p, out, count, true))
        run(&j);
}

void threads_draft(pool *p, size_t rows, const pool_drafts *out) {
    uint32_t count = 0;
    for (uint32_t i = 0; rows >= p->threads.many_rows && i < rows; i++)
        if (!p->step.rows[i].drafted && p->step.rows[i].k && p->slots.items[p->step.rows[i].slot].drafts)
            p->step.order[count++] = i;
    job j;
    if (count && start(&j, p, out, count, false))
        run(&j);
}
