// SPDX-License-Identifier: Apache-2.0

#ifndef SAVE_POOL_H
#define SAVE_POOL_H

#include "persist.h"

#include <errno.h>

// Writes a pool that nobody else uses to a file, as Pool.save does.
static persist_status save_pool(pool *p, const char *path) {
    persist_snapshot s;
    if (!persist_collect(p, &s)) {
        errno = ENOMEM;
        return PERSIST_SYSTEM;
    }
    persist_status status = persist_write(&s, path);
    int error = errno;
    persist_release(&s, SIZE_MAX);
    errno = error;
    return status;
}

#endif
