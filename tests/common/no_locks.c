// SPDX-License-Identifier: Apache-2.0
// A library to preload: locks of files in the folder $NO_LOCKS fail with the error $NO_LOCKS_ERRNO, as on Lustre
// without option flock (ENOSYS) and on NFS 3 without rpc.statd (ENOLCK).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static bool fails(int file) {
    char link[64], path[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    const char *folder = getenv("NO_LOCKS"), *number = getenv("NO_LOCKS_ERRNO");
    if (!folder || !number || readlink(link, path, sizeof path - 1) < 0)
        return false;
    errno = atoi(number);
    return strncmp(path, folder, strlen(folder)) == 0;
}

int flock(int file, int operation) {
    int (*real)(int, int) = dlsym(RTLD_NEXT, "flock");
    return fails(file) ? -1 : real(file, operation);
}

static int control(const char *name, int file, int command, void *argument) {
    int (*real)(int, int, ...) = dlsym(RTLD_NEXT, name);
    return (command == F_SETLK || command == F_SETLKW) && fails(file) ? -1 : real(file, command, argument);
}

#define CONTROL(name)                                                                                        \
    int name(int file, int command, ...) {                                                                   \
        va_list more;                                                                                        \
        va_start(more, command);                                                                             \
        void *argument = va_arg(more, void *);                                                               \
        va_end(more);                                                                                        \
        return control(#name, file, command, argument);                                                      \
    }

CONTROL(fcntl)
CONTROL(fcntl64)
