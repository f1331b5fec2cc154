#!/bin/sh
# Compile the kernels for this machine with $CC or cc, and run the C tests: run.sh DIRECTORY [fuzz]
#
# AddressSanitizer and UndefinedBehaviorSanitizer watch the tests if the compiler has them. Only the levels that this
# processor runs are compiled, those in float64 for the best level, and the level amx where only its own instructions are
# missing, with these in C (tiles.h). With `fuzz`, libFuzzer runs its targets, for FUZZ_SECONDS each.
set -eu
kernels=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1" && cd "$1" && rm -f ./*.o
cc=${CC:-cc}
flags="-std=gnu11 -g -O0 -Werror=vla -ffp-contract=fast -fno-math-errno -fno-trapping-math -Wno-psabi"
watched="-fsanitize=address,undefined -fno-sanitize-recover=all"
if [ "${2-}" = fuzz ]; then cc=${CC:-clang} watched="$watched -fsanitize=fuzzer-no-link"; fi
echo 'int main(void) { return 0; }' > trivial.c
if $cc $watched trivial.c -o trivial 2> /dev/null && ./trivial; then flags="$flags $watched"
else echo "the compiler $cc has no sanitizers: the tests run without"; fi

machine=$(uname -m | tr a-z A-Z)
case $machine in ARM64) machine=AARCH64 ;; X86_64 | AARCH64) ;; *) machine=OTHER ;; esac
echo '#include <stdio.h>
#include "levels.h"
int main(void) { char message[256]; int dots; relattn_choose(0, "?", &dots, message); puts(message); return 0; }' > allowed.c
$cc -w -I"$kernels" -DPARTS= allowed.c "$kernels/levels.c" -o allowed
allowed=" $(./allowed | tr ',' ' ') " emulated=
case $allowed in *" amx "*) ;; *" avx512_bf16 "*) allowed="$allowed amx " emulated=-DAMX=1 ;; esac
lowest=$(sed -n "s/^$machine(\([a-z0-9_]*\),.*/\1/p" "$kernels/levels.h" | tail -n 1)

: > commands
best=
sed -n "s/^$machine(\([a-z0-9_]*\), \([A-Z0-9]*\), .*\"\(.*\)\")\$/\1 \2 \3/p" "$kernels/levels.h" > levels
while read -r level dtypes options; do
    case $allowed in *" $level "*) ;; *) [ "$level" = "$lowest" ] || continue ;; esac
    [ "$emulated$level" = -DAMX=1amx ] && options="$options -include '$kernels/tests/tiles.h'"
    for dtype in $(case $dtypes in EXACT) echo float32 $([ "$best" ] || echo float64) ;; TILES) echo bfloat16 int8 ;; *) echo bfloat16 ;; esac); do
        case $dtype in float64) define=-DREAL64 ;; bfloat16) define=-DBF16 ;; *) define= ;; esac
        for source in attention/attention engine/engine tests/part; do
            case $source-$dtype in engine*-float64 | engine*-bfloat16 | tests*-bfloat16 | attention*-int8) continue ;; esac
            name=$(basename $source)
            echo "$cc $flags $options $define -DPART=relattn_${level}_$dtype -DLEVEL_NAME='\"$level\"'" \
                "-DLEVEL_FILE='\"$level.h\"' -c '$kernels/$source.c' -o $name-$level-$dtype.o" >> commands
        done
    done
    [ "$dtypes" = EXACT ] && best=$level
done < levels
tr '\n' '\0' < commands | xargs -0 -n 1 -P "$(getconf _NPROCESSORS_ONLN)" sh -c

link() { # PROGRAM PART SOURCE...: a test with the parts of these names and the chooser
    program=$1 part=$2
    shift 2
    parts=$(ls "$part"-*.o | sed "s/$part-\(.*\)-\(.*\)\.o/PART(\1, \2)/" | tr '\n' ' ')
    $cc $flags $emulated $extra "-DPARTS=$parts" "$@" "$kernels/levels.c" "$part"-*.o -lm -ldl -lpthread -o "$program"
}
extra=
attention="$kernels/attention/open.c" engine="$kernels/engine/open.c" tests="$kernels/tests"
if [ "${2-}" = fuzz ]; then
    extra="-fsanitize=fuzzer -DLIBFUZZER --rtlib=compiler-rt"
    link fuzz-attention attention "$tests/fuzz_attention.c" "$attention"
    link fuzz-engine engine "$tests/fuzz_engine.c" "$engine"
    for target in attention engine; do
        mkdir -p corpus-$target
        ./fuzz-$target -max_total_time="${FUZZ_SECONDS:-60}" -rss_limit_mb=4096 corpus-$target
    done
    exit
fi
$cc $flags "$tests/levels.c" -o levels-test
$cc $flags -DPARTS= "$tests/errors.c" "$kernels/levels.c" "$attention" "$engine" -lpthread -ldl -o errors-test
link parts part "$tests/parts.c"
link attention attention "$tests/attention.c" "$attention"
link fuzz-attention attention "$tests/fuzz_attention.c" "$attention"
link engine engine "$tests/engine.c" "$engine"
link fuzz-engine engine "$tests/fuzz_engine.c" "$engine"
for program in levels-test errors-test parts attention engine fuzz-attention fuzz-engine; do ./$program; done
