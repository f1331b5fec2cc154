/* Runs one call of a kernel, in a process of its own: FILE KERNEL LIBRARY...

   FILE holds the call as `test_emulated.py` writes it, in 64-bit integers and bytes:

       where the kernel's arguments lie | number of pointers | of each: where it lies, what it points to | ... bytes

   where all places are counted from the file's start. The kernel works on the file's own bytes, so that its results are
   in the file afterwards. It is looked up in the last library; those before it are there for it to find. */

#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

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
    const int file = argc > 3 ? open(argv[1], O_RDWR) : -1;
    if (file < 0 || fstat(file, &is) != 0) return failed("FILE");
    char *bytes = mmap(NULL, is.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (bytes == MAP_FAILED) return failed(argv[1]);

    void *library = NULL;
    for (int i = 3; i < argc; i++)
        if (!(library = dlopen(argv[i], RTLD_NOW | RTLD_GLOBAL))) return failed(argv[i]);
    int (*kernel)(const void *) = (int (*)(const void *))dlsym(library, argv[2]);
    if (!kernel) return failed(argv[2]);

    const call *it = (const call *)bytes;
    for (int64_t i = 0; i < it->count; i++) *(char **)(bytes + it->pointers[i].where) = bytes + it->pointers[i].to;
    return kernel(bytes + it->arguments);
}
