# butler: `make` leaves the command at ./butler; `make check` builds and runs every test (see ./check --help).
#   SANITIZE=address,undefined | thread   builds everything with that sanitizer (in its own folder)
#   BUILD=DIR                             where objects go
#   PREFIX=DIR DESTDIR=DIR                where `make install` puts the command, the library, the header and the default model
#   V=1                                   shows every command
CC ?= gcc
LIB_PKGS = libpcre2-8 libxxhash
# Editing of lines in chat, where there is libedit; LIBEDIT= builds without it.
LIBEDIT := $(shell pkg-config --exists libedit && echo libedit)
# The server, where there is libevent; LIBEVENT= builds without it.
LIBEVENT := $(shell pkg-config --exists libevent_core && echo libevent_core)
# Documents that are no plain text, where there are the libraries; POPPLER=, LIBXML= or LIBARCHIVE= builds without one.
POPPLER := $(shell pkg-config --exists poppler-glib && echo poppler-glib)
LIBXML := $(shell pkg-config --exists libxml-2.0 && echo libxml-2.0)
LIBARCHIVE := $(shell pkg-config --exists libarchive && echo libarchive)
CMD_PKGS = jansson $(LIBEDIT) $(LIBEVENT)
DOCUMENT_PKGS = $(POPPLER) $(LIBXML) $(LIBARCHIVE)
DOCUMENT_NONE = $(if $(POPPLER),pdf_none,pdf) $(if $(LIBXML),xml_none,xml) $(if $(and $(LIBXML),$(LIBARCHIVE)),archive_none,archive)
SANITIZE ?=
comma = ,
BUILD ?= build$(if $(SANITIZE),/$(subst $(comma),-,$(SANITIZE)))
PREFIX ?= /usr/local
DESTDIR ?=
STRIP ?= strip
V ?=
Q = $(if $(filter 1,$(V)),,@)
say = $(if $(filter 1,$(V))$(findstring s,$(filter-out --%,$(firstword -$(MAKEFLAGS)))),,@echo '$(1)' '$(2)')
VERSION := $(shell sed -n 's/.*BUTLER_VERSION "\(.*\)".*/\1/p' include/butler.h)
# Programs find the shared library by this name: the major version, and while that is 0 the minor one too.
VERSION_PARTS := $(subst ., ,$(VERSION))
SO := libbutler.so.$(if $(filter 0,$(word 1,$(VERSION_PARTS))),0.$(word 2,$(VERSION_PARTS)),$(word 1,$(VERSION_PARTS)))

WARN = -Wall -Wextra -Wshadow -Wundef -Wvla -Wmissing-prototypes -Wstrict-prototypes
SANFLAGS = $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
# Line tables alone: complete debug information doubles the time that the kernels take to compile.
CFLAGS ?= -O3 -g1
PKG_CFLAGS := $(shell pkg-config --cflags $(LIB_PKGS) $(CMD_PKGS))
ALL_CFLAGS = -std=c11 -D_GNU_SOURCE $(WARN) -fPIC -fvisibility=hidden -ffp-contract=off -pthread -Iinclude -Isrc -Iapps -I. \
	$(SANFLAGS) $(PKG_CFLAGS) $(CFLAGS)
LIB_LIBS := -pthread $(shell pkg-config --libs $(LIB_PKGS)) -lm -ldl
CMD_LIBS := $(shell pkg-config --libs $(CMD_PKGS) $(DOCUMENT_PKGS))

# What the command does beyond the library: training, conversion, quantisation.
TOOL_SRC = $(filter-out apps/train/gather_mpi.c,$(wildcard apps/train/*.c)) src/file/convert.c src/file/quantize.c
LIB_SRC = $(filter-out $(TOOL_SRC),$(wildcard src/*/*.c))
CMD_SRC = $(filter-out apps/cmd/$(if $(LIBEDIT),edit_none,edit).c $(if $(LIBEVENT),apps/cmd/serve_none.c) $(DOCUMENT_NONE:%=apps/cmd/document_%.c), \
	$(wildcard apps/cmd/*.c apps/report/*.c apps/schema/*.c $(if $(LIBEVENT),apps/serve/*.c)))
EVAL_SRC = $(wildcard apps/eval/*.c)
TEST_SRC = $(filter-out $(if $(LIBEVENT),,tests/test_parse_once.c),$(wildcard tests/test_*.c))
SERVE_FUZZ_SRC = fuzz/fuzz_http.c fuzz/fuzz_request.c
FUZZ_SRC = $(filter-out $(if $(LIBEVENT),,$(SERVE_FUZZ_SRC)),$(wildcard fuzz/fuzz_*.c))
LIB_OBJ = $(LIB_SRC:%.c=$(BUILD)/%.o)
TOOL_OBJ = $(TOOL_SRC:%.c=$(BUILD)/%.o)
CMD_OBJ = $(CMD_SRC:%.c=$(BUILD)/%.o) $(EVAL_OBJ)
EVAL_OBJ = $(EVAL_SRC:%.c=$(BUILD)/%.o)
TESTS = $(TEST_SRC:tests/%.c=$(BUILD)/tests/%)

# Training over many processes, where there is an MPI: an object of its own, so that nothing else loads one.
MPI_SO = $(if $(shell pkg-config --exists ompi-c && echo yes),$(BUILD)/butler-mpi.so)

all: butler

butler: $(BUILD)/butler $(MPI_SO)
	@cp -f $< $@

$(BUILD)/butler-mpi.so: apps/train/gather_mpi.c apps/train/gather.h include/butler.h
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(ALL_CFLAGS) $(shell pkg-config --cflags ompi-c) -shared -o $@ $< $(shell pkg-config --libs ompi-c)

# The whole archive and its names: a plug-in may call any public function.
$(BUILD)/butler: $(CMD_OBJ) $(TOOL_OBJ) $(BUILD)/libbutler.a
	$(call say,LD,$@)
	$(Q)$(CC) $(SANFLAGS) -o $@ $(CMD_OBJ) $(TOOL_OBJ) -Wl,--whole-archive $(BUILD)/libbutler.a -Wl,--no-whole-archive $(LIB_LIBS) $(CMD_LIBS) -rdynamic

$(BUILD)/libbutler.a: $(LIB_OBJ)
$(BUILD)/tools.a: $(TOOL_OBJ)
$(BUILD)/libbutler.a $(BUILD)/tools.a: Makefile # which says what is in them
	@rm -f $@
	$(call say,AR,$@)
	$(Q)$(AR) rcs $@ $(filter %.o,$^)

$(BUILD)/$(SO): $(LIB_OBJ)
	$(call say,LD,$@)
	$(Q)$(CC) $(SANFLAGS) -shared -Wl,-soname,$(SO) -o $@ $^ $(LIB_LIBS)

lib: $(BUILD)/libbutler.a $(BUILD)/$(SO)

# Says where the shared library is: for python/setup.py, which takes it along.
print-shared-library:
	@echo $(BUILD)/$(SO)

# Which instructions beyond the base ISA a file of kernels may use stands at its head (src/kernels/target.h). On ARM it stands here:
# clang's <arm_neon.h> declares dot products only where the whole file has them.
ifeq ($(firstword $(subst -, ,$(shell $(CC) -dumpmachine))),aarch64)
$(BUILD)/src/kernels/keys_dot.o: ISA = -march=armv8.2-a+dotprod
endif

# Kernels begin at a cache line, so that how fast their loops run does not hang on what lies before them.
$(BUILD)/src/kernels/%.o: ALIGN = -falign-functions=64

# Rows of results name the commit that measured them. The file changes only with the commit, so that `make` compiles nothing else.
COMMIT := $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)$(shell git diff --quiet HEAD 2>/dev/null || echo +changes)
$(BUILD)/commit: commit-changes
	@mkdir -p $(@D)
	@echo '$(COMMIT)' | cmp -s - $@ || echo '$(COMMIT)' > $@
$(BUILD)/apps/eval/commit.o: $(BUILD)/commit
$(BUILD)/apps/eval/commit.o: ISA = -DEVAL_COMMIT='"$(COMMIT)"'

$(BUILD)/apps/cmd/document_%.o: PKG_CFLAGS += $(if $(strip $(DOCUMENT_PKGS)),$(shell pkg-config --cflags $(DOCUMENT_PKGS)))

# The assembler takes these files in.
$(BUILD)/apps/serve/page.o: $(wildcard apps/serve/page/*)
$(BUILD)/src/gpu/texts_gpu.o: $(wildcard src/gpu/*.cl) src/gpu/opencl.h src/gpu/cuda.h

# Fuzzing reaches none of their loops, and instrumenting those takes a compiler minutes.
$(patsubst %,$(BUILD)/src/kernels/%.o,avx2 avx512 matmul_avx2 matmul_vnni matmul_amx attend_avx2 amx attend_amx): ISA += $(PLAIN_KERNELS)

# A compiler takes a third of the time for tests so; what they test is in the library.
$(BUILD)/tests/%.o: LEVEL = -O1

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(ALL_CFLAGS) $(LEVEL) $(ISA) $(ALIGN) -MMD -MP -c -o $@ $<

# ----------------------------------------------------------------------------------------------------- tests

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(BUILD)/tools.a $(BUILD)/libbutler.a
	$(call say,LD,$@)
	$(Q)$(CC) $(SANFLAGS) -o $@ $^ $(LIB_LIBS) -lcmocka

# Tests of the evaluation link it too, and what it writes JSON with.
$(BUILD)/tests/test_eval_%: $(BUILD)/tests/test_eval_%.o $(EVAL_OBJ) $(BUILD)/libbutler.a
	$(call say,LD,$@)
	$(Q)$(CC) $(SANFLAGS) -o $@ $^ $(LIB_LIBS) $(CMD_LIBS) -lcmocka

# That of the scheduler links what of the server needs no network.
SCHEDULER_OBJ = $(patsubst %,$(BUILD)/apps/serve/%.o,choice draft job jobs map pace park prepare receipt reread scheduler scores text trace)
$(BUILD)/tests/test_scheduler $(BUILD)/tests/test_glass_scheduler: $(BUILD)/tests/%: $(BUILD)/tests/%.o $(SCHEDULER_OBJ) $(BUILD)/tools.a $(BUILD)/libbutler.a
	$(call say,LD,$@)
	$(Q)$(CC) $(SANFLAGS) -o $@ $^ $(LIB_LIBS) -lcmocka

$(BUILD)/tests/test_worker: $(BUILD)/tests/test_worker.o $(BUILD)/apps/serve/worker.o $(BUILD)/apps/serve/text.o $(BUILD)/libbutler.a
	$(call say,LD,$@)
	$(Q)$(CC) $(SANFLAGS) -o $@ $^ $(LIB_LIBS) -lcmocka

# So does that of the parser of answers.
PARSER_OBJ = $(patsubst %,$(BUILD)/apps/serve/%.o,tools tools_head tools_xml tools_whole tools_messages text)
$(BUILD)/tests/test_tools: $(BUILD)/tests/test_tools.o $(PARSER_OBJ) $(BUILD)/libbutler.a
	$(call say,LD,$@)
	$(Q)$(CC) $(SANFLAGS) -o $@ $^ $(CMD_LIBS) -lcmocka

# Counts what is parsed: with the whole server, whose calls of these functions come to the test's.
WRAP = $(patsubst %,-Wl$(comma)--wrap=%,json_loadb json_loads json_dumps butler_template_read_json butler_chat_render)
$(BUILD)/tests/test_parse_once: $(BUILD)/tests/test_parse_once.o $(patsubst %.c,$(BUILD)/%.o,$(wildcard apps/serve/*.c apps/schema/*.c)) $(BUILD)/libbutler.a
	$(call say,LD,$@)
	$(Q)$(CC) $(SANFLAGS) $(WRAP) -o $@ $^ $(LIB_LIBS) $(CMD_LIBS) -lcmocka

# Compares texts and parsed values, which it makes as the server does.
$(BUILD)/tests/render_chat: $(BUILD)/tests/render_chat.o $(BUILD)/apps/serve/template_json.o $(BUILD)/apps/serve/text.o $(BUILD)/libbutler.a
	$(call say,LD,$@)
	$(Q)$(CC) $(SANFLAGS) -o $@ $^ $(LIB_LIBS) $(CMD_LIBS)

# Stand-ins for CUDA's libraries, which that of CUDA opens instead of a machine's.
FAKE_CUDA = $(patsubst %,$(BUILD)/tests/fake_cuda/lib%,cuda.so.1 nvrtc.so.12 cublas.so.12)
$(BUILD)/tests/fake_cuda/libcuda.so.1: $(BUILD)/tests/fake_cuda.o
$(BUILD)/tests/fake_cuda/libnvrtc.so.12: $(BUILD)/tests/fake_nvrtc.o
$(BUILD)/tests/fake_cuda/libcublas.so.12: $(BUILD)/tests/fake_cublas.o
$(FAKE_CUDA):
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(SANFLAGS) -shared -o $@ $^ -lm
$(BUILD)/tests/test_cuda: $(BUILD)/tests/test_cuda.o $(BUILD)/tools.a $(BUILD)/libbutler.a | $(FAKE_CUDA)
	$(call say,LD,$@)
	$(Q)$(CC) $(SANFLAGS) -o $@ $^ $(LIB_LIBS) -lcmocka -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/fake_cuda'

# Says which texts a grammar or a schema accepts.
$(BUILD)/tests/accept_texts: $(BUILD)/tests/accept_texts.o $(patsubst %.c,$(BUILD)/%.o,$(wildcard apps/schema/*.c)) $(BUILD)/libbutler.a
	$(call say,LD,$@)
	$(Q)$(CC) $(SANFLAGS) -o $@ $^ $(LIB_LIBS) $(CMD_LIBS)

tests: $(TESTS)

# Every object but benchmarks', for a compiler's opinion: make objects CC=clang BUILD=build/clang CFLAGS='-fsyntax-only -Werror'
objects: $(LIB_OBJ) $(CMD_OBJ) $(TEST_SRC:%.c=$(BUILD)/%.o)

check:
	./check

# Benchmarks are programs: `make bench`, then build/bench/bench_NAME.
bench: $(patsubst %.c,$(BUILD)/%,$(wildcard bench/bench_*.c))

$(BUILD)/bench/bench_kernels $(BUILD)/bench/bench_roofline $(BUILD)/bench/bench_prefill: $(BUILD)/bench/ceilings.o
$(BUILD)/bench/%: $(BUILD)/bench/%.o $(BUILD)/tools.a $(BUILD)/libbutler.a
	$(call say,LD,$@)
	$(Q)$(CC) $(SANFLAGS) -o $@ $^ $(LIB_LIBS)

FUZZ_CFLAGS = -O1 -g
# Fuzz targets are clang's: `make fuzz`, then build/fuzz/fuzz/fuzz_NAME [FLAGS OF LIBFUZZER] tests/corpus/NAME
fuzz:
	$(Q)$(MAKE) CC=clang BUILD=build/fuzz SANITIZE=address,undefined,fuzzer-no-link CFLAGS="$(FUZZ_CFLAGS)" PLAIN_KERNELS=-fno-sanitize=all \
		fuzz-programs

fuzz-programs: $(FUZZ_SRC:%.c=$(BUILD)/%)

$(SERVE_FUZZ_SRC:%.c=$(BUILD)/%): $(patsubst %.c,$(BUILD)/%.o,$(wildcard apps/serve/*.c apps/schema/*.c))
$(SERVE_FUZZ_SRC:%.c=$(BUILD)/%): FUZZ_LIBS = $(CMD_LIBS)
DOCUMENT_OBJ = $(patsubst %.c,$(BUILD)/%.o,$(filter-out apps/cmd/document.c $(DOCUMENT_NONE:%=apps/cmd/document_%.c),$(wildcard apps/cmd/document_*.c)))
$(BUILD)/fuzz/fuzz_document: $(DOCUMENT_OBJ)
$(BUILD)/fuzz/fuzz_document: FUZZ_LIBS = $(CMD_LIBS)
$(BUILD)/fuzz/fuzz_tools: $(PARSER_OBJ)
$(BUILD)/fuzz/fuzz_tools: FUZZ_LIBS = $(CMD_LIBS)
$(BUILD)/fuzz/fuzz_schema: $(patsubst %.c,$(BUILD)/%.o,$(wildcard apps/schema/*.c))
$(BUILD)/fuzz/fuzz_schema: FUZZ_LIBS = $(CMD_LIBS)
$(BUILD)/fuzz/fuzz_%: $(BUILD)/fuzz/fuzz_%.o $(BUILD)/libbutler.a
	$(call say,LD,$@)
	$(Q)$(CC) -fsanitize=address,undefined,fuzzer -o $@ $(filter %.o,$^) $(filter %.a,$^) $(LIB_LIBS) $(FUZZ_LIBS)

# --------------------------------------------------------------------------------------------------- install

DATA = apps/eval/longbench.json $(wildcard models/butler-default*.gguf models/long_text.txt)

ROOT = $(DESTDIR)$(PREFIX)
INSTALL_PROGRAM = install -m 755 -s --strip-program=$(STRIP)

install: butler lib
	$(call say,INSTALL,$(ROOT))
	$(Q)install -d $(ROOT)/bin $(ROOT)/include $(ROOT)/lib/pkgconfig $(ROOT)/share/butler $(ROOT)/share/man/man1 \
		$(ROOT)/share/bash-completion/completions
	$(Q)$(INSTALL_PROGRAM) butler $(ROOT)/bin/butler
	$(Q)install -m 644 $(wildcard include/*.h) $(ROOT)/include
	$(Q)install -m 644 $(BUILD)/libbutler.a $(ROOT)/lib/libbutler.a
	$(Q)$(STRIP) --strip-debug $(ROOT)/lib/libbutler.a
	$(Q)$(INSTALL_PROGRAM) $(BUILD)/$(SO) $(ROOT)/lib/$(SO)
	$(Q)ln -sf $(SO) $(ROOT)/lib/libbutler.so
	$(if $(MPI_SO),$(Q)install -d $(ROOT)/lib/butler && $(INSTALL_PROGRAM) $(MPI_SO) $(ROOT)/lib/butler/butler-mpi.so)
	$(Q)sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@VERSION@|$(VERSION)|' -e 's|@PKGS@|$(LIB_PKGS)|' \
		-e 's|@RPATH@|$(if $(filter /usr,$(PREFIX)),,-Wl,-rpath,$${libdir})|' src/butler.pc.in \
		> $(ROOT)/lib/pkgconfig/butler.pc
	$(Q)install -m 644 docs/butler.1 $(ROOT)/share/man/man1/butler.1
	$(Q)install -m 644 apps/cmd/completion.bash $(ROOT)/share/bash-completion/completions/butler
	$(if $(DATA),$(Q)install -m 644 $(DATA) $(ROOT)/share/butler)

uninstall:
	$(Q)rm -f $(ROOT)/bin/butler $(addprefix $(ROOT)/,$(wildcard include/*.h)) $(ROOT)/lib/libbutler.a $(ROOT)/lib/libbutler.so $(ROOT)/lib/$(SO) \
		$(ROOT)/lib/pkgconfig/butler.pc $(ROOT)/share/man/man1/butler.1 $(ROOT)/share/bash-completion/completions/butler
	$(Q)rm -rf $(ROOT)/share/butler $(ROOT)/lib/butler

clean:
	rm -rf build butler

.PHONY: all lib print-shared-library commit-changes tests objects check bench fuzz fuzz-programs install uninstall clean
# Objects that only a chain of pattern rules names are kept. Without names .SECONDARY would mean every file, and then one that
# is absent is not made while what needs it is newer.
.SECONDARY: $(TEST_SRC:%.c=$(BUILD)/%.o) $(FUZZ_SRC:%.c=$(BUILD)/%.o) $(patsubst %.c,$(BUILD)/%.o,$(wildcard bench/*.c))
-include $(LIB_OBJ:.o=.d) $(TOOL_OBJ:.o=.d) $(CMD_OBJ:.o=.d) $(TESTS:=.d) $(BUILD)/tests/record_policies.d $(BUILD)/tests/render_chat.d $(BUILD)/tests/accept_texts.d $(BUILD)/tests/card_gpu.d $(BUILD)/tests/fake_cuda.d $(BUILD)/tests/fake_nvrtc.d $(BUILD)/tests/fake_cublas.d $(wildcard $(BUILD)/bench/*.d)
