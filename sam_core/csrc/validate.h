// SPDX-License-Identifier: Apache-2.0

#ifndef VALIDATE_H
#define VALIDATE_H

#include "pool.h"

// Checks every invariant of the pool and its indexes; slow, for tests. Returns false, with a sentence in *reason, if
// one does not hold.
bool pool_validate(pool *p, const char **reason);

#endif
