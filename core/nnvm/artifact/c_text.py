"""The fixed text of what `nnvm.artifact.c_source` writes, with places for what differs."""

from __future__ import annotations

__all__ = ["EXAMPLE", "HEADER", "MAKE_READY", "PREPARE", "RUN", "SOURCE", "STAGE"]

HEADER = """\
/* {name}: a model compiled by nnvm for {level} ({triple}).
 *
 *   cc -O2 -c {name}.c                                          one thread
 *   cc -O2 -fopenmp -c {name}.c                                 with OpenMP
 *   cc program.o {name}.o -L. -l{name}_kernels -lm              and -fopenmp again
 *
{inputs}
{outputs}
{sizes}
 */
#ifndef NNVM_{guard}_H
#define NNVM_{guard}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

enum {{ NNVM_INPUTS = {num_inputs}, NNVM_OUTPUTS = {num_outputs}, NNVM_SIZES = {num_sizes} }};

typedef struct nnvm_model nnvm_model;

/* Maps the weights ({name}.safetensors){and_packs}. NULL where the file cannot be read or belongs to another model. */
nnvm_model *nnvm_create(const char *weights);

/* Runs the model; several threads may at once. 0, or a code that nnvm_message explains: then outputs are undefined. */
int32_t nnvm_run(const nnvm_model *model, const void *const *inputs, void *const *outputs, const int64_t *sizes);

/* Bytes of an input or output; -1 where there is none of this number. */
int64_t nnvm_input_bytes(int32_t index, const int64_t *sizes);
int64_t nnvm_output_bytes(int32_t index, const int64_t *sizes);

const char *nnvm_message(int32_t code);

void nnvm_destroy(nnvm_model *model);

#ifdef __cplusplus
}}
#endif
#endif
"""

SOURCE = """\
/* Written by nnvm export-c; see {name}.h. */
#define _POSIX_C_SOURCE 200112L
#include "{name}.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

{externs}

struct nnvm_model {{
    char *weights;
    char *prepared;
}};

static inline int64_t max_of(int64_t a, int64_t b) {{ return a > b ? a : b; }}
static inline int64_t min_of(int64_t a, int64_t b) {{ return a < b ? a : b; }}
static inline int64_t mod_of(int64_t a, int64_t b) {{
    int64_t r = a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}}
static inline int64_t div_of(int64_t a, int64_t b) {{ return (a - mod_of(a, b)) / b; }}

typedef int32_t (*loop_body)(void *closure, int64_t begin, int64_t end, int64_t thread);

/* What kernels with parallel loops call. */
__attribute__((weak)) int32_t nnvm_parallel(loop_body body, void *closure, int64_t extent, int64_t threads) {{
#ifdef _OPENMP
    if (threads > 1 && extent > 1 && !omp_in_parallel()) {{
        int32_t failed = 0;
#pragma omp parallel num_threads((int)min_of(extent, threads))
        {{
            int64_t me = omp_get_thread_num(), team = omp_get_num_threads();
            int64_t chunk = extent / team, rest = extent % team;
            int64_t begin = me * chunk + min_of(me, rest), end = begin + chunk + (me < rest);
            int32_t code = begin < end ? body(closure, begin, end, me) : 0;
            if (code != 0) {{
#pragma omp atomic write
                failed = code;
            }}
        }}
        return failed;
    }}
#endif
    (void)threads;
    return body(closure, 0, extent, 0);
}}

static const char *const messages[] = {{
{messages}    "",
}};

const char *nnvm_message(int32_t code) {{
    if (code == 0) return "done";
    if (code == -1) return "there is not enough memory";
    return code > 0 && code <= {num_messages} ? messages[code - 1] : "no such code";
}}

int64_t nnvm_input_bytes(int32_t index, const int64_t *n) {{
    (void)n;
    switch (index) {{
{input_bytes}
    }}
    return -1;
}}

int64_t nnvm_output_bytes(int32_t index, const int64_t *n) {{
    (void)n;
    switch (index) {{
{output_bytes}
    }}
    return -1;
}}

/* Whether the file is the one that the offsets below are of. */
static int is_ours(const unsigned char *data) {{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int64_t i = 0; i < INT64_C({head}); i++) hash = (hash ^ data[i]) * UINT64_C(0x100000001b3);
    return hash == {hash};
}}

{prepare}nnvm_model *nnvm_create(const char *weights) {{
    int file = open(weights, O_RDONLY);
    struct stat status;
    void *data = MAP_FAILED;
    if (file < 0) return NULL;
    if (fstat(file, &status) == 0 && status.st_size == INT64_C({weight_bytes}))
        data = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (data == MAP_FAILED) return NULL;
    nnvm_model *model = is_ours(data) ? calloc(1, sizeof *model) : NULL;
    if (model == NULL) {{
        munmap(data, (size_t)INT64_C({weight_bytes}));
        return NULL;
    }}
    model->weights = data;
{make_ready}    return model;
}}

void nnvm_destroy(nnvm_model *model) {{
    if (model == NULL) return;
    munmap(model->weights, (size_t)INT64_C({weight_bytes}));
    free(model->prepared);
    free(model);
}}

{stages}"""

#: Of a stage: `{head}` is the function's, `{outputs}` its outputs.
STAGE = """\
{head} {{
    int64_t threads = 1, work = 0;
    int64_t arena = ({arena} + 63) / 64 * 64;
    int32_t code = 0;
    void *whole = NULL;
    (void)n;
    (void)model;
{unused}#ifdef _OPENMP
    threads = omp_get_max_threads();
#endif
{workspaces}
    work = (work + 63) / 64 * 64;
    if (posix_memalign(&whole, 64, (size_t)(arena + work * threads + 64)) != 0) return -1;
    char *memory = whole;
    char *workspace = memory + arena;
    char *base[] = {{
        {bases}
    }};
    (void)workspace;
    (void)base;
{steps}
{copies}
    goto done;
done:
    free(whole);
    return code;
}}
"""

RUN = """\
int32_t nnvm_run(const nnvm_model *model, const void *const *inputs, void *const *outputs, const int64_t *n)"""

PREPARE = """\
/* Lays out the weights for this processor. */
static int32_t prepare(nnvm_model *model, const int64_t *n)"""

#: In nnvm_create.
MAKE_READY = """\
    void *room = NULL;
    if (posix_memalign(&room, 64, (size_t)INT64_C({bytes})) == 0) model->prepared = room;
    if (room == NULL || prepare(model, NULL) != 0) {{
        nnvm_destroy(model);
        return NULL;
    }}
"""

EXAMPLE = """\
/* Runs the model on raw arrays in files:
 *
 *   example {name}.safetensors [SIZE...] INPUT... OUTPUT...
 *
{inputs}
{outputs}
 */
#include <stdio.h>
#include <stdlib.h>

#include "{name}.h"

static int moved(const char *path, const char *mode, void *data, int64_t bytes) {{
    FILE *file = fopen(path, mode);
    if (file == NULL) return 0;
    size_t done = mode[0] == 'r' ? fread(data, 1, (size_t)bytes, file) : fwrite(data, 1, (size_t)bytes, file);
    return fclose(file) == 0 && done == (size_t)bytes;
}}

int main(int argc, char **argv) {{
    const void *inputs[NNVM_INPUTS + 1];
    void *outputs[NNVM_OUTPUTS + 1];
    int64_t sizes[NNVM_SIZES + 1];
    char **at = argv + 2;
    if (argc != 2 + NNVM_SIZES + NNVM_INPUTS + NNVM_OUTPUTS) {{
        fprintf(stderr, "usage: %s WEIGHTS, then %d sizes, %d inputs, %d outputs\\n", argv[0], NNVM_SIZES,
                NNVM_INPUTS, NNVM_OUTPUTS);
        return 2;
    }}
    nnvm_model *model = nnvm_create(argv[1]);
    if (model == NULL) {{
        fprintf(stderr, "%s holds no weights of this model\\n", argv[1]);
        return 1;
    }}
    for (int i = 0; i < NNVM_SIZES; i++) sizes[i] = atoll(*at++);
    for (int i = 0; i < NNVM_INPUTS; i++, at++) {{
        int64_t bytes = nnvm_input_bytes(i, sizes);
        void *data = malloc((size_t)bytes + 1);
        if (data == NULL || !moved(*at, "rb", data, bytes)) {{
            fprintf(stderr, "%s does not hold %lld bytes\\n", *at, (long long)bytes);
            return 1;
        }}
        inputs[i] = data;
    }}
    for (int i = 0; i < NNVM_OUTPUTS; i++) outputs[i] = malloc((size_t)nnvm_output_bytes(i, sizes) + 1);
    int32_t code = nnvm_run(model, inputs, outputs, sizes);
    if (code != 0) {{
        fprintf(stderr, "%s\\n", nnvm_message(code));
        return 1;
    }}
    for (int i = 0; i < NNVM_OUTPUTS; i++, at++)
        if (!moved(*at, "wb", outputs[i], nnvm_output_bytes(i, sizes))) return 1;
    for (int i = 0; i < NNVM_INPUTS; i++) free((void *)inputs[i]);
    for (int i = 0; i < NNVM_OUTPUTS; i++) free(outputs[i]);
    nnvm_destroy(model);
    return 0;
}}
"""
