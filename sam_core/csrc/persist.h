// SPDX-License-Identifier: Apache-2.0
//
// Saves a pool's texts, if history is a source, and what it has learned to a file, and loads such a file. Slots are
// not saved, nor are indexes, which are built again when they are needed.
//
// File, little-endian, in units of 4 bytes:
//   header     persist_header
//   learned    header.learned bytes: rule_model_learned
//   groups     from the one closed longest ago to the one closed last, then those with open slots; for each
//                uint32 kind, texts; uint64 bytes of the key; the key, padded with zeros;
//                then its texts in order of opening, for each
//                  uint32 tokens of the prompt, tokens in all; the tokens, in a prompt's group without the
//                  prompt, which is the key
//   zeros      to a multiple of 8 bytes
//   checksum   uint64 of everything before it, as uint64: c = (c ^ unit) * CHECKSUM_FACTOR, c ^= c >> 32
//
// Any damage within 8 aligned bytes changes the checksum, any other with probability 1 - 2^-64.

#ifndef PERSIST_H
#define PERSIST_H

#include "pool.h"

#define PERSIST_MAGIC "sampool" // with its terminating zero
#define PERSIST_ORDER 0x01020304u
enum { PERSIST_VERSION = 3 };

typedef struct {
    char magic[8];
    uint32_t version;
    uint32_t order;   // PERSIST_ORDER as the writer's machine stores it
    uint64_t bytes;   // of the whole file
    uint32_t rule;    // rule_name
    uint32_t sources; // as in pool
    uint64_t learned; // bytes
    uint64_t groups, texts;
    uint64_t tokens;                // of the texts, prompts included
    uint64_t vocab_size, tokenizer; // as in pool
} persist_header;

typedef enum {
    PERSIST_OK,
    PERSIST_SYSTEM,  // see errno
    PERSIST_REFUSED, // *reason continues a sentence that starts with the path and "is"
} persist_status;

typedef struct {
    pool_text *text; // pinned
    const int32_t *tokens;
    uint32_t prompt_size, size;
} persist_text;

typedef struct {
    pool_key kind;
    uint32_t texts;
    uint64_t key_bytes;
} persist_group;

// What is to be saved of a pool, which may be used and changed while it is written.
typedef struct {
    persist_header header;
    void *learned;
    persist_group *groups; // header.groups
    persist_text *texts;   // header.texts, group after group
    char *names;           // keys of POOL_NAMED, concatenated; other keys are the prompts of the texts
    size_t group_capacity, text_capacity, name_capacity, name_bytes;
    size_t pinned; // number of pinned texts, the first ones
} persist_snapshot;

// Collects what is to be saved: time and memory are proportional to the number of texts, not of tokens.
// Returns false without memory; nothing has to be released then.
bool persist_collect(pool *p, persist_snapshot *s);

// Why what is at `path` must not be replaced, as the end of a sentence that starts with the path and "is"; NULL if it
// may be.
const char *persist_refuse(const char *path);

// Replaces the file at `path` by the snapshot, readable by its owner only. On failure (PERSIST_SYSTEM) the
// old file stays and there is no new one. Does not access the pool: needs no lock.
persist_status persist_write(const persist_snapshot *s, const char *path);

// Unpins at most max_texts texts, with the pool's lock held. Returns whether some are left.
bool persist_release(persist_snapshot *s, size_t max_texts);

typedef struct {
    int file; // descriptor
    persist_header header;
} persist_file;

// Opens a file and checks that it is complete and undamaged, of this version, and private to this user. With
// any status but PERSIST_OK nothing is open.
persist_status persist_open(persist_file *f, const char *path, const char **reason);

// Adds the contents of the file to a new pool with its rule and sources. Groups that do not fit into the
// pool's memory are left out, those closed longest ago first, and counted as evicted. With any status but
// PERSIST_OK the pool is valid but incomplete.
persist_status persist_load(persist_file *f, pool *p, const char **reason);

// Checks what persist_load checks, by loading the file into a temporary pool.
persist_status persist_check(persist_file *f, const char **reason);

void persist_close(persist_file *f);

#endif
