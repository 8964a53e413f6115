// SPDX-License-Identifier: Apache-2.0

#define _GNU_SOURCE 1 // mkostemp

#include "persist.h"

#include "corpus.h"
#include "group.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECKSUM_FACTOR UINT64_C(0x9E3779B97F4A7C15)
#define A_LINK "a symbolic link: name the file itself"
#define DAMAGED "damaged: restore it from a copy, or start with a new pool"
#define OF_ANOTHER_VERSION "from another version of sam_core: load it there, or start with a new pool"

enum { BUFFER = 1 << 14, UNIT = 4, CHECKSUM = 8 };

_Static_assert(sizeof(persist_header) == 80, "the header has no gaps");

static uint64_t checksum(uint64_t sum, const unsigned char *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i += CHECKSUM) {
        uint64_t unit;
        memcpy(&unit, data + i, sizeof unit);
        sum = (sum ^ unit) * CHECKSUM_FACTOR;
        sum ^= sum >> 32;
    }
    return sum;
}

// ---- writing

// Returns the array with room for `more` entries after the first `count`; NULL: no memory.
static void *grow_list(void *array, size_t *capacity, size_t count, size_t more, size_t entry) {
    if (more <= *capacity - count)
        return array;
    size_t larger = count + more + count / 2 + 64;
    void *grown = SAM_REALLOC(array, larger * entry);
    if (grown)
        *capacity = larger;
    return grown;
}

// Whether a text is saved: it is closed and longer than the group's key.
static bool is_saved(const pool_group *g, const pool_text *text) {
    return text && text->slot == SAM_NONE && !text->removed &&
           (g->kind == POOL_NAMED || text->body.size > text->prompt_size);
}

// The first token of a text that is written; those before are the group's key.
static uint32_t first_saved(pool_key kind, uint32_t prompt_size) {
    return kind == POOL_BY_PROMPT ? prompt_size : 0;
}

static bool collect_group(persist_snapshot *s, const pool_group *g) {
    uint32_t texts = 0;
    for (uint32_t i = 0; i < g->text_count; i++) {
        pool_text *text = (pool_text *)g->texts[i];
        if (!is_saved(g, text))
            continue;
        persist_text *list = grow_list(s->texts, &s->text_capacity, s->header.texts, 1, sizeof(persist_text));
        if (!list)
            return false;
        s->texts = list;
        const sam_text *body = &text->body;
        list[s->header.texts++] = (persist_text){text, body->tokens, text->prompt_size, body->size};
        text_pin(text);
        s->header.tokens += body->size;
        s->header.bytes +=
            2 * UNIT + (body->size - first_saved(g->kind, text->prompt_size)) * sizeof(int32_t);
        texts++;
    }
    if (!texts)
        return true;
    if (g->kind == POOL_NAMED && g->key_bytes) { // a prompt stands in each of the texts
        char *names = grow_list(s->names, &s->name_capacity, s->name_bytes, g->key_bytes, 1);
        if (!names)
            return false;
        s->names = names;
        memcpy(names + s->name_bytes, g->key, g->key_bytes);
        s->name_bytes += g->key_bytes;
    }
    persist_group *groups =
        grow_list(s->groups, &s->group_capacity, s->header.groups, 1, sizeof(persist_group));
    if (!groups)
        return false;
    s->groups = groups;
    groups[s->header.groups++] = (persist_group){g->kind, texts, g->key_bytes};
    s->header.bytes += 4 * UNIT + g->key_bytes + -g->key_bytes % UNIT;
    return true;
}

bool persist_collect(pool *p, persist_snapshot *s) {
    pool_catch_up(p);
    size_t learned;
    const void *from = rule_model_learned(p->model, &learned);
    *s = (persist_snapshot){.header = {.magic = PERSIST_MAGIC,
                                       .version = PERSIST_VERSION,
                                       .order = PERSIST_ORDER,
                                       .bytes = sizeof s->header + learned,
                                       .rule = p->options.rule,
                                       .sources = p->options.sources,
                                       .learned = learned,
                                       .vocab_size = p->options.vocab_size,
                                       .tokenizer = p->options.tokenizer}};
    s->learned = SAM_REALLOC(NULL, learned);
    bool done = s->learned != NULL;
    if (done)
        memcpy(s->learned, from, learned);
    for (const pool_group *g = p->groups.main.oldest; done && g; g = g->by_state.newer)
        done = collect_group(s, g);
    for (const pool_group *g = p->groups.window.oldest; done && g; g = g->by_state.newer)
        done = collect_group(s, g);
    bool has_history = p->options.sources >> RULE_HISTORY & 1;
    for (size_t i = 0; done && has_history && i < p->groups.bucket_count; i++)
        for (const pool_group *g = p->groups.buckets[i]; done && g; g = g->chain)
            done = !g->open || collect_group(s, g);
    s->header.bytes += -s->header.bytes % CHECKSUM + CHECKSUM;
    s->pinned = s->header.texts;
    if (!done)
        persist_release(s, SIZE_MAX);
    return done;
}

bool persist_release(persist_snapshot *s, size_t max_texts) {
    for (; s->pinned && max_texts; max_texts--)
        text_unpin(s->texts[--s->pinned].text);
    if (s->pinned)
        return true;
    SAM_FREE(s->learned);
    SAM_FREE(s->texts);
    SAM_FREE(s->groups);
    SAM_FREE(s->names);
    return false;
}

typedef struct {
    int file;
    int error; // errno of the first failure
    uint64_t bytes, sum;
    size_t used;
    unsigned char buffer[BUFFER];
} writer;

static void flush(writer *w) {
    w->sum = checksum(w->sum, w->buffer, w->used);
    for (size_t done = 0; !w->error && done < w->used;) {
        ssize_t wrote = write(w->file, w->buffer + done, w->used - done);
        if (wrote >= 0)
            done += (size_t)wrote;
        else if (errno != EINTR)
            w->error = errno;
    }
    w->used = 0;
}

static void put(writer *w, const void *data, size_t bytes) {
    w->bytes += bytes;
    for (const unsigned char *from = data; bytes;) {
        size_t part = BUFFER - w->used < bytes ? BUFFER - w->used : bytes;
        memcpy(w->buffer + w->used, from, part);
        w->used += part;
        from += part;
        bytes -= part;
        if (w->used == BUFFER)
            flush(w);
    }
}

static void pad(writer *w, size_t unit) {
    static const unsigned char zeros[CHECKSUM];
    put(w, zeros, (unit - w->bytes % unit) % unit);
}

static void put_snapshot(writer *w, const persist_snapshot *s) {
    put(w, &s->header, sizeof s->header);
    put(w, s->learned, s->header.learned);
    size_t at = 0, name_at = 0;
    for (size_t i = 0; i < s->header.groups; i++) {
        const persist_group *g = &s->groups[i];
        uint32_t head[2] = {g->kind, g->texts};
        uint64_t key_bytes = g->key_bytes;
        put(w, head, sizeof head);
        put(w, &key_bytes, sizeof key_bytes);
        if (key_bytes)
            put(w, g->kind == POOL_NAMED ? (const void *)(s->names + name_at) : s->texts[at].tokens,
                key_bytes);
        pad(w, UNIT);
        if (g->kind == POOL_NAMED)
            name_at += key_bytes;
        for (size_t end = at + g->texts; at < end; at++) {
            const persist_text *text = &s->texts[at];
            uint32_t sizes[2] = {text->prompt_size, text->size};
            uint32_t from = first_saved(g->kind, text->prompt_size);
            put(w, sizes, sizeof sizes);
            if (text->size > from)
                put(w, text->tokens + from, (text->size - from) * sizeof(int32_t));
        }
    }
    pad(w, CHECKSUM);
    flush(w);
    uint64_t sum = w->sum;
    put(w, &sum, sizeof sum);
    flush(w);
}

// Syncs a folder, so that a crash does not undo a rename in it.
static int sync_folder(const char *folder) {
    int file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file < 0)
        return errno;
    int error = fsync(file) && errno != EINVAL ? errno : 0; // EINVAL: not needed on this file system
    close(file);
    return error;
}

// Writes the snapshot to a new file next to `path` and renames it. `temporary` begins with the folder's name,
// `length` bytes ending in "/", and has room for the file's. Returns errno.
static int replace(const persist_snapshot *s, const char *path, char *temporary, size_t length) {
    strcpy(temporary + length, ".pool-XXXXXX");
    writer w = {.file = mkostemp(temporary, O_CLOEXEC)};
    if (w.file < 0)
        return errno;
    put_snapshot(&w, s);
    if (!w.error && fsync(w.file))
        w.error = errno;
    if (close(w.file) && !w.error)
        w.error = errno;
    if (!w.error && rename(temporary, path))
        w.error = errno;
    if (w.error) {
        unlink(temporary);
        return w.error;
    }
    temporary[length] = 0;
    return sync_folder(temporary);
}

const char *persist_refuse(const char *path) {
    struct stat status;
    if (lstat(path, &status) || S_ISDIR(status.st_mode)) // a new file; or persist_write says what is wrong
        return NULL;
    if (S_ISLNK(status.st_mode))
        return A_LINK;
    if (!S_ISREG(status.st_mode))
        return "no regular file: name another path";
    char magic[sizeof CORPUS_MAGIC] = {0};
    int file = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool is_corpus = file >= 0 && read(file, magic, sizeof magic) == sizeof magic &&
                     memcmp(magic, CORPUS_MAGIC, sizeof magic) == 0;
    if (file >= 0)
        close(file);
    return is_corpus ? "a corpus, which would be lost: name another path" : NULL;
}

persist_status persist_write(const persist_snapshot *s, const char *path) {
    const char *name = strrchr(path, '/');
    size_t length = name ? (size_t)(name - path) + 1 : 2;
    char *temporary = SAM_REALLOC(NULL, length + sizeof ".pool-XXXXXX");
    if (!temporary) {
        errno = ENOMEM;
        return PERSIST_SYSTEM;
    }
    memcpy(temporary, name ? path : "./", length);
    int error = replace(s, path, temporary, length);
    SAM_FREE(temporary);
    errno = error;
    return error ? PERSIST_SYSTEM : PERSIST_OK;
}

// ---- reading

// Reads `bytes` bytes. Returns false on failure and sets errno, to 0 if the file is too short.
static bool read_all(int file, void *data, size_t bytes) {
    for (unsigned char *to = data; bytes;) {
        ssize_t got = read(file, to, bytes);
        if (got == 0)
            errno = 0;
        if (got == 0 || (got < 0 && errno != EINTR))
            return false;
        if (got > 0) {
            to += got;
            bytes -= (size_t)got;
        }
    }
    return true;
}

// The reason to refuse a file's attributes, or NULL.
static const char *judge(const struct stat *status) {
    if (!S_ISREG(status->st_mode))
        return "no regular file: name a file that Pool.save wrote";
    if (status->st_uid != geteuid())
        return "owned by another user: copy it to a file of your own if you trust it";
    if (status->st_mode & (S_IRWXG | S_IRWXO))
        return "open to other users: make it private by chmod 600 if you trust its contents";
    return NULL;
}

// The reason to refuse a file's header, or NULL. *error: errno if it cannot be read.
static const char *judge_header(persist_file *f, uint64_t bytes, int *error) {
    static const char foreign[] = "no saved pool: name a file that Pool.save wrote";
    persist_header *h = &f->header;
    if (bytes < sizeof *h)
        return foreign;
    if (!read_all(f->file, h, sizeof *h)) {
        *error = errno;
        return foreign;
    }
    if (memcmp(h->magic, PERSIST_MAGIC, sizeof h->magic) != 0)
        return foreign;
    if (h->order != PERSIST_ORDER)
        return "from a machine with another byte order: load it there";
    if (h->version != PERSIST_VERSION)
        return OF_ANOTHER_VERSION;
    if (h->bytes != bytes || bytes % CHECKSUM || bytes < sizeof *h + CHECKSUM)
        return "cut short or added to: restore it from a copy, or start with a new pool";
    return NULL;
}

// The reason to refuse the file's contents, or NULL. *error: errno if it cannot be read.
static const char *judge_contents(const persist_file *f, int *error) {
    unsigned char buffer[BUFFER];
    memcpy(buffer, &f->header, sizeof f->header);
    uint64_t sum = checksum(0, buffer, sizeof f->header);
    for (uint64_t left = f->header.bytes - sizeof f->header; left;) {
        size_t part = left < BUFFER ? (size_t)left : BUFFER;
        if (!read_all(f->file, buffer, part)) {
            *error = errno;
            return DAMAGED;
        }
        left -= part;
        if (!left)
            part -= CHECKSUM;
        sum = checksum(sum, buffer, part);
        if (!left && memcmp(&sum, buffer + part, CHECKSUM) != 0)
            return DAMAGED;
    }
    const persist_header *h = &f->header;
    unsigned group = 1u << RULE_GROUP, history = 1u << RULE_HISTORY;
    if (h->vocab_size > (uint64_t)1 << 31 || h->rule > RULE_BLEND || !h->sources ||
        h->sources & ~(1u << RULE_REQUEST | group | history | 1u << RULE_COMMON) ||
        (h->sources & history && !(h->sources & group)))
        return DAMAGED;
    bool former = h->rule == 2 || (h->groups && !(h->sources & history));
    return former ? OF_ANOTHER_VERSION : NULL;
}

persist_status persist_open(persist_file *f, const char *path, const char **reason) {
    *f = (persist_file){.file = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)};
    if (f->file < 0) {
        if (errno != ELOOP)
            return PERSIST_SYSTEM;
        *reason = A_LINK;
        return PERSIST_REFUSED;
    }
    struct stat status;
    int error = fstat(f->file, &status) ? errno : 0;
    if (!error) {
        *reason = judge(&status);
        if (!*reason)
            *reason = judge_header(f, (uint64_t)status.st_size, &error);
        if (!*reason)
            *reason = judge_contents(f, &error);
        if (!*reason)
            return PERSIST_OK;
    }
    persist_close(f);
    errno = error;
    return error ? PERSIST_SYSTEM : PERSIST_REFUSED;
}

void persist_close(persist_file *f) {
    if (f->file >= 0)
        close(f->file);
    f->file = -1;
}

typedef struct {
    int file;
    int error;     // errno of a failure, 0 if the file is damaged
    uint64_t left; // bytes before the checksum
    size_t at, size;
    unsigned char buffer[BUFFER];
} reader;

// Reads the next `bytes` bytes, or skips them if data is NULL. Returns false if fewer are left, or if reading fails
// (r->error is set).
static bool take(reader *r, void *data, uint64_t bytes) {
    if (bytes > r->left)
        return false;
    r->left -= bytes;
    for (unsigned char *to = data; bytes;) {
        if (r->at == r->size) {
            uint64_t rest = r->left + bytes;
            r->at = 0;
            r->size = rest < BUFFER ? (size_t)rest : BUFFER;
            if (!read_all(r->file, r->buffer, r->size)) {
                r->error = errno;
                return false;
            }
        }
        size_t part = r->size - r->at < bytes ? r->size - r->at : (size_t)bytes;
        if (to) {
            memcpy(to, r->buffer + r->at, part);
            to += part;
        }
        r->at += part;
        bytes -= part;
    }
    return true;
}

static bool are_tokens(const int32_t *tokens, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (tokens[i] < 0)
            return false;
    return true;
}

// Reads the group's next text if *fits, else skips it. Sets *fits to false without memory for it. Returns false if the
// file is damaged or cannot be read.
static bool take_text(reader *r, pool *p, pool_group *g, pool_key kind, uint64_t key_bytes, bool *fits) {
    uint32_t head[2];
    if (!take(r, head, sizeof head))
        return false;
    uint32_t prompt_size = head[0], size = head[1], shared = kind == POOL_BY_PROMPT ? prompt_size : 0;
    if (size < prompt_size || (kind == POOL_BY_PROMPT && prompt_size * sizeof(int32_t) != key_bytes) ||
        (size - shared) * sizeof(int32_t) > r->left)
        return false;
    pool_text *text = *fits ? text_new(p, prompt_size, size) : NULL;
    *fits = text != NULL;
    if (!text)
        return take(r, NULL, (size - shared) * sizeof(int32_t));
    int32_t *tokens = text->body.tokens;
    if (shared)
        memcpy(tokens, g->key, key_bytes);
    if (size > shared && (!take(r, tokens + shared, (size - shared) * sizeof(int32_t)) ||
                          !are_tokens(tokens + shared, size - shared))) {
        text_free(p, text);
        return false;
    }
    text->body.size = size;
    *fits = group_add_closed_text(p, g, text);
    return true;
}

static bool take_group(reader *r, pool *p) {
    uint32_t head[2];
    uint64_t key_bytes;
    if (!take(r, head, sizeof head) || !take(r, &key_bytes, sizeof key_bytes) || key_bytes > r->left)
        return false;
    pool_key kind = head[0] == POOL_BY_PROMPT ? POOL_BY_PROMPT : POOL_NAMED;
    if ((head[0] != POOL_BY_PROMPT && head[0] != POOL_NAMED) || !head[1])
        return false;
    pool_group *g = group_new(p, kind, key_bytes);
    bool fits = g != NULL;
    bool valid = take(r, fits ? g->key : NULL, key_bytes) && take(r, NULL, -key_bytes % UNIT);
    if (valid && fits && kind == POOL_BY_PROMPT)
        valid = are_tokens(g->key, key_bytes / sizeof(int32_t));
    for (uint32_t i = 0; valid && i < head[1]; i++)
        valid = take_text(r, p, g, kind, key_bytes, &fits);
    if (valid && fits) {
        valid = !group_find(p, kind, g->key, key_bytes);
        if (valid && group_add(p, g))
            return true;
    }
    if (g)
        group_free(p, g);
    p->stats.evicted_groups++;
    return valid;
}

persist_status persist_load(persist_file *f, pool *p, const char **reason) {
    reader r = {.file = f->file, .left = f->header.bytes - sizeof f->header - CHECKSUM};
    size_t learned_bytes;
    void *learned = rule_model_learned(p->model, &learned_bytes);
    bool valid = lseek(f->file, sizeof f->header, SEEK_SET) >= 0;
    if (!valid)
        r.error = errno;
    valid = valid && f->header.learned == learned_bytes && take(&r, learned, learned_bytes) &&
            rule_model_valid(p->model);
    for (uint64_t i = 0; valid && i < f->header.groups; i++)
        valid = take_group(&r, p);
    if (valid && r.left < CHECKSUM)
        return PERSIST_OK;
    *reason = DAMAGED;
    errno = r.error;
    return r.error ? PERSIST_SYSTEM : PERSIST_REFUSED;
}

persist_status persist_check(persist_file *f, const char **reason) {
    pool trial;
    if (!pool_init(&trial, SIZE_MAX, (rule_name)f->header.rule, f->header.sources, NULL, 0)) {
        errno = ENOMEM;
        return PERSIST_SYSTEM;
    }
    persist_status status = persist_load(f, &trial, reason);
    int error = errno;
    pool_free(&trial);
    errno = error;
    return status;
}
