# butler: `make` leaves the command at ./butler; `make check` builds and runs every test (see ./check --help).
#   SANITIZE=address,undefined | thread   builds everything with that sanitizer (in its own folder)
#   BUILD=DIR                             where objects go
#   PREFIX=DIR DESTDIR=DIR                where `make install` puts the command, the library, the header and the default model
CC ?= gcc
LIB_PKGS = libpcre2-8 libxxhash
CMD_PKGS = jansson
SANITIZE ?=
comma = ,
BUILD ?= build$(if $(SANITIZE),/$(subst $(comma),-,$(SANITIZE)))
PREFIX ?= /usr/local
DESTDIR ?=
VERSION := $(shell sed -n 's/.*BUTLER_VERSION "\(.*\)".*/\1/p' include/butler.h)

WARN = -Wall -Wextra -Wshadow -Wundef -Wvla -Wmissing-prototypes -Wstrict-prototypes
SANFLAGS = $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
CFLAGS ?= -O3 -g
PKG_CFLAGS := $(shell pkg-config --cflags $(LIB_PKGS) $(CMD_PKGS))
ALL_CFLAGS = -std=c11 -D_GNU_SOURCE $(WARN) -fPIC -fvisibility=hidden -ffp-contract=off -pthread -Iinclude -Isrc -I. \
	$(SANFLAGS) $(PKG_CFLAGS) $(CFLAGS)
LIB_LIBS := -pthread $(shell pkg-config --libs $(LIB_PKGS)) -lm -ldl
CMD_LIBS := $(shell pkg-config --libs $(CMD_PKGS))

LIB_SRC = $(filter-out train/gather_mpi.c,$(wildcard src/*/*.c train/*.c))
CMD_SRC = $(wildcard cmd/*.c report/*.c)
EVAL_SRC = $(wildcard eval/*.c)
TEST_SRC = $(wildcard tests/test_*.c)
FUZZ_SRC = $(wildcard fuzz/fuzz_*.c)
LIB_OBJ = $(LIB_SRC:%.c=$(BUILD)/%.o)
CMD_OBJ = $(CMD_SRC:%.c=$(BUILD)/%.o) $(EVAL_OBJ)
EVAL_OBJ = $(EVAL_SRC:%.c=$(BUILD)/%.o)
TESTS = $(TEST_SRC:tests/%.c=$(BUILD)/tests/%)

# Training over many processes, where there is an MPI: an object of its own, so that nothing else loads one.
MPI_SO = $(if $(shell pkg-config --exists ompi-c && echo yes),$(BUILD)/butler-mpi.so)

all: butler

butler: $(BUILD)/butler $(MPI_SO)
	@cp -f $< $@

$(BUILD)/butler-mpi.so: train/gather_mpi.c train/gather.h include/butler.h
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(shell pkg-config --cflags ompi-c) -shared -o $@ $< $(shell pkg-config --libs ompi-c)

# The whole archive and its names: a plug-in may call any public function.
$(BUILD)/butler: $(CMD_OBJ) $(BUILD)/libbutler.a
	$(CC) $(SANFLAGS) -o $@ $(CMD_OBJ) -Wl,--whole-archive $(BUILD)/libbutler.a -Wl,--no-whole-archive $(LIB_LIBS) $(CMD_LIBS) -rdynamic

$(BUILD)/libbutler.a: $(LIB_OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

$(BUILD)/libbutler.so.0: $(LIB_OBJ)
	$(CC) $(SANFLAGS) -shared -Wl,-soname,libbutler.so.0 -o $@ $^ $(LIB_LIBS)

lib: $(BUILD)/libbutler.a $(BUILD)/libbutler.so.0

# Only these files may use instructions beyond the base ISA; which of them runs is decided at run time.
MACHINE := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))
ifeq ($(MACHINE),x86_64)
$(BUILD)/src/kernels/avx2.o: ISA = -mavx2 -mfma -mf16c
$(patsubst %,$(BUILD)/src/kernels/%.o,keys_avx2 matmul_avx2 attend_avx2 one_bit_avx2): ISA = -mavx2 -mfma -mf16c
$(patsubst %,$(BUILD)/src/kernels/%.o,keys_vnni matmul_vnni one_bit_vnni attend_vnni): ISA = -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
$(BUILD)/src/kernels/one_bit_amx.o: ISA = -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mamx-tile -mamx-int8
$(patsubst %,$(BUILD)/src/kernels/%.o,avx512 attend_eight): ISA = -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl
$(patsubst %,$(BUILD)/src/kernels/%.o,amx attend_amx): ISA = -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mamx-tile -mamx-bf16 -mamx-int8
else ifeq ($(MACHINE),aarch64)
$(BUILD)/src/kernels/keys_dot.o: ISA = -march=armv8.2-a+dotprod
endif

# Kernels begin at a cache line, so that how fast their loops run does not hang on what lies before them.
$(BUILD)/src/kernels/%.o: ALIGN = -falign-functions=64

# Fuzzing reaches none of their loops, and instrumenting those takes a compiler minutes.
$(patsubst %,$(BUILD)/src/kernels/%.o,avx2 avx512 matmul_avx2 matmul_vnni attend_avx2 attend_vnni attend_eight amx attend_amx): ISA += $(PLAIN_KERNELS)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ISA) $(ALIGN) -MMD -MP -c -o $@ $<

# ----------------------------------------------------------------------------------------------------- tests

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(BUILD)/libbutler.a
	$(CC) $(SANFLAGS) -o $@ $^ $(LIB_LIBS) -lcmocka

# Tests of the evaluation link it too, and what it writes JSON with.
$(BUILD)/tests/test_eval_%: $(BUILD)/tests/test_eval_%.o $(EVAL_OBJ) $(BUILD)/libbutler.a
	$(CC) $(SANFLAGS) -o $@ $^ $(LIB_LIBS) $(CMD_LIBS) -lcmocka

tests: $(TESTS)

check:
	./check

# Benchmarks are programs: `make bench`, then build/bench/bench_NAME.
bench: $(patsubst %.c,$(BUILD)/%,$(wildcard bench/bench_*.c))

$(BUILD)/bench/bench_kernels $(BUILD)/bench/bench_roofline $(BUILD)/bench/bench_prefill: $(BUILD)/bench/ceilings.o
$(BUILD)/bench/%: $(BUILD)/bench/%.o $(BUILD)/libbutler.a
	$(CC) $(SANFLAGS) -o $@ $^ $(LIB_LIBS)

# Fuzz targets are clang's: `make fuzz`, then build/fuzz/fuzz/fuzz_NAME [FLAGS OF LIBFUZZER] tests/corpus/NAME
fuzz:
	$(MAKE) CC=clang BUILD=build/fuzz SANITIZE=address,undefined,fuzzer-no-link CFLAGS="-O1 -g" PLAIN_KERNELS=-fno-sanitize=all \
		fuzz-programs

fuzz-programs: $(FUZZ_SRC:%.c=$(BUILD)/%)

$(BUILD)/fuzz/fuzz_%: $(BUILD)/fuzz/fuzz_%.o $(BUILD)/libbutler.a
	$(CC) -fsanitize=address,undefined,fuzzer -o $@ $^ $(LIB_LIBS)

# --------------------------------------------------------------------------------------------------- install

DATA = eval/longbench.json $(wildcard models/butler-default*.gguf models/long_text.txt)

install: butler lib
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/share/butler
	install -m 755 butler $(DESTDIR)$(PREFIX)/bin/butler
	install -m 644 include/butler.h $(DESTDIR)$(PREFIX)/include/butler.h
	install -m 644 $(BUILD)/libbutler.a $(DESTDIR)$(PREFIX)/lib/libbutler.a
	install -m 755 $(BUILD)/libbutler.so.0 $(DESTDIR)$(PREFIX)/lib/libbutler.so.0
	ln -sf libbutler.so.0 $(DESTDIR)$(PREFIX)/lib/libbutler.so
	$(if $(MPI_SO),install -D -m 755 $(MPI_SO) $(DESTDIR)$(PREFIX)/lib/butler/butler-mpi.so)
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@PKGS@|$(LIB_PKGS)|' src/butler.pc.in \
		> $(DESTDIR)$(PREFIX)/lib/pkgconfig/butler.pc
	$(if $(DATA),install -m 644 $(DATA) $(DESTDIR)$(PREFIX)/share/butler)

uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/butler $(DESTDIR)$(PREFIX)/include/butler.h $(DESTDIR)$(PREFIX)/lib/libbutler.a \
		$(DESTDIR)$(PREFIX)/lib/libbutler.so $(DESTDIR)$(PREFIX)/lib/libbutler.so.0 $(DESTDIR)$(PREFIX)/lib/pkgconfig/butler.pc
	rm -rf $(DESTDIR)$(PREFIX)/share/butler $(DESTDIR)$(PREFIX)/lib/butler

clean:
	rm -rf build butler

.PHONY: all lib tests check bench fuzz fuzz-programs install uninstall clean
.SECONDARY:
-include $(LIB_OBJ:.o=.d) $(CMD_OBJ:.o=.d) $(TESTS:=.d) $(BUILD)/tests/record_policies.d $(wildcard $(BUILD)/bench/*.d)
