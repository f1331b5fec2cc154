/* Runs one call of a kernel, in a process of its own: FILE KERNEL DTYPE LIBRARY...

   FILE holds the call as `test_emulated.py` writes it, in 64-bit integers and bytes:

       where the kernel's arguments lie | number of pointers | of each: where it lies, what it points to | ... bytes

   where all places are counted from the file's start. The kernel works on the file's own bytes, so that its results are
   in the file afterwards. The last library chooses it for the processor; those before it are there for it to find. */

#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "relattn.h"

typedef struct {
    int64_t arguments, count;
    struct {
        int64_t where, to;
    } pointers[];
} call;

static int failed(const char *what) {
    fprintf(stderr, "%s cannot be opened or has no such kernel\n", what);
    return 2;
}

int main(int argc, char **argv) {
    struct stat is;
    const int file = argc > 4 ? open(argv[1], O_RDWR) : -1;
    if (file < 0 || fstat(file, &is) != 0) return failed("FILE");
    char *bytes = mmap(NULL, is.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), message[256];
    if (bytes == MAP_FAILED) return failed(argv[1]);

    void *library = NULL;
    for (int i = 4; i < argc; i++)
        if (!(library = dlopen(argv[i], RTLD_NOW | RTLD_GLOBAL))) return failed(argv[i]);
    int (*open_kernels)(int, const char *, relattn_kernels *, char *) =
        (int (*)(int, const char *, relattn_kernels *, char *))dlsym(library, "relattn_open");
    relattn_kernels kernels;
    if (!open_kernels || open_kernels(atoi(argv[3]), NULL, &kernels, message)) return failed(argv[argc - 1]);

    const call *it = (const call *)bytes;
    for (int64_t i = 0; i < it->count; i++) *(char **)(bytes + it->pointers[i].where) = bytes + it->pointers[i].to;
    const void *arguments = bytes + it->arguments;
    if (strcmp(argv[2], "forward") == 0) return (int)kernels.forward(arguments);
    if (strcmp(argv[2], "backward") == 0) return (int)kernels.backward(arguments);
    if (strcmp(argv[2], "linear") == 0) return (int)kernels.linear(arguments);
    return failed(argv[2]);
}
