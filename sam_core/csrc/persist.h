// SPDX-License-Identifier: Apache-2.0
//
// Saves a pool's texts and what it has learned to a file, and makes a pool from one. Slots are not saved, nor
// are indexes: they are built again when they are needed.
//
// File, little-endian, in units of 4 bytes:
//   header     persist_header
//   learned    header.learned bytes: the part of rule_model that rules.h names for this
//   groups     from the one closed longest ago to the one closed last, then those with open slots; of each
//                uint32 kind, texts; uint64 bytes of the key; the key, padded with zeros;
//                then its texts in order of opening, of each
//                  uint32 tokens of the prompt, tokens in all; the tokens, of a prompt's group without the
//                  prompt, which is the key
//   zeros      to a multiple of 8 bytes
//   checksum   uint64 of all before, taken as uint64: c = (c ^ unit) * CHECKSUM_FACTOR, c ^= c >> 32
//
// Any damage within 8 aligned bytes changes the checksum, any other with probability 1 - 2^-64.

#ifndef PERSIST_H
#define PERSIST_H

#include "pool.h"

#define PERSIST_MAGIC "sampool" // with its terminating zero
#define PERSIST_ORDER 0x01020304u
enum { PERSIST_VERSION = 2 };

typedef struct {
    char magic[8];
    uint32_t version;
    uint32_t order;   // PERSIST_ORDER as the writer's machine stores it
    uint64_t bytes;   // of the whole file
    uint32_t rule;    // rule_name
    uint32_t sources; // as in pool
    uint64_t learned; // bytes
    uint64_t groups, texts;
    uint64_t tokens; // of the texts, prompts included
} persist_header;

typedef enum {
    PERSIST_OK,
    PERSIST_SYSTEM,  // errno tells
    PERSIST_REFUSED, // *reason continues a sentence that starts with the path and "is"
} persist_status;

// Replaces the file at `path` by one with the pool, readable by its owner only. On failure (PERSIST_SYSTEM)
// the old file is there still and no new one.
persist_status persist_save(const pool *p, const char *path);

typedef struct {
    int file; // descriptor
    persist_header header;
} persist_file;

// Opens a file and checks that all of it is as it was saved, by this version, for this user alone. Any status
// but PERSIST_OK: nothing is open.
persist_status persist_open(persist_file *f, const char *path, const char **reason);

// Adds what the file holds to a new pool of its rule and sources. Groups that do not fit into the pool's
// memory are left out, those closed longest ago first, and counted as evicted. Any status but PERSIST_OK: the
// pool is sound but of no use.
persist_status persist_load(persist_file *f, pool *p, const char **reason);

void persist_close(persist_file *f);

#endif
