# butler: `make` leaves the command at ./butler; `make test` builds and runs every test.
#   SANITIZE=address,undefined | thread   builds everything with that sanitizer (in its own folder)
#   BUILD=DIR                             where objects go
CC ?= gcc
PKGS = libpcre2-8 libxxhash jansson
SANITIZE ?=
BUILD ?= build$(if $(SANITIZE),/$(subst $(comma),-,$(SANITIZE)))
comma = ,
PREFIX ?= /usr/local
DESTDIR ?=
VERSION := $(shell sed -n 's/.*BUTLER_VERSION "\(.*\)".*/\1/p' include/butler.h)

WARN = -Wall -Wextra -Wshadow -Wundef -Wvla -Wmissing-prototypes -Wstrict-prototypes
SANFLAGS = $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
CFLAGS ?= -O3 -g
ALL_CFLAGS = -std=c11 -D_GNU_SOURCE $(WARN) -fPIC -fvisibility=hidden -ffp-contract=off -pthread -Iinclude -Isrc -Ikernels \
	$(SANFLAGS) $(shell pkg-config --cflags $(PKGS)) $(CFLAGS)
LDLIBS = $(SANFLAGS) -pthread $(shell pkg-config --libs $(PKGS)) -lm -ldl

LIB_SRC = $(wildcard src/*.c metrics/*.c methods/*.c kernels/*.c)
CMD_SRC = $(wildcard cmd/*.c)
TEST_SRC = $(wildcard tests/test_*.c)
LIB_OBJ = $(LIB_SRC:%.c=$(BUILD)/%.o)
CMD_OBJ = $(CMD_SRC:%.c=$(BUILD)/%.o)
TESTS = $(TEST_SRC:tests/%.c=$(BUILD)/tests/%)

all: butler

butler: $(BUILD)/butler
	@cp -f $< $@

$(BUILD)/butler: $(CMD_OBJ) $(BUILD)/libbutler.a
	$(CC) -o $@ $^ $(LDLIBS) -rdynamic

$(BUILD)/libbutler.a: $(LIB_OBJ)
	@rm -f $@
	ar rcs $@ $^

# Only these files may use instructions beyond the base ISA; which of them runs is decided at run time.
$(BUILD)/kernels/avx2.o: ISA = -mavx2 -mfma -mf16c
$(BUILD)/kernels/avx512.o: ISA = -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(ALL_CFLAGS) $(ISA) -MMD -MP -c -o $@ $<

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(BUILD)/libbutler.a
	$(CC) -o $@ $^ $(LDLIBS) -lcmocka

clean:
	rm -rf build butler

.PHONY: all clean
.SECONDARY:
-include $(LIB_OBJ:.o=.d) $(CMD_OBJ:.o=.d)
