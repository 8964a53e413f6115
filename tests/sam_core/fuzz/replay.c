// SPDX-License-Identifier: Apache-2.0
//
// Runs a fuzz target on the files that are named, without libFuzzer.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerInitialize(int *count, char ***arguments);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int main(int count, char **arguments) {
    LLVMFuzzerInitialize(&count, &arguments);
    for (int i = 1; i < count; i++) {
        FILE *file = fopen(arguments[i], "rb");
        if (!file) {
            perror(arguments[i]);
            return 2;
        }
        uint8_t buffer[1 << 16];
        size_t size = fread(buffer, 1, sizeof buffer, file);
        fclose(file);
        uint8_t *data = malloc(size); // of exactly the size
        for (size_t j = 0; j < size; j++)
            data[j] = buffer[j];
        LLVMFuzzerTestOneInput(data, size);
        free(data);
    }
    return 0;
}
