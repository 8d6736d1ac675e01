// SPDX-License-Identifier: BSD-2-Clause

package ioctl

import (
	"encoding/binary"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
)

// source has one object with a method for each kind of attribute, in tables of the kernel's shape.
const source = `
struct spec { unsigned char type, flags; unsigned short a, b, c, d; unsigned short pad[3]; };
struct attr { unsigned short id; unsigned short pad[3]; unsigned char type, flags; unsigned short a, b, c;
	const struct spec *elements; };
struct method { unsigned short id; unsigned flags; unsigned long num; const struct attr *const (*attrs)[]; void *fn; };
struct object { unsigned short id; const void *type; unsigned long num; const struct method *const (*methods)[]; };
static const struct spec values[] = {{1, 0, 0, 0}, {1, 0, 8, 4}};
static const struct attr *const attrs[] = {
	&(const struct attr){3, {0}, 1, 7, 16, 4}, &(const struct attr){1, {0}, 2, 8, 0xffff, 0},
	&(const struct attr){0, {0}, 3, 4, 9, 3}, &(const struct attr){4, {0}, 5},
	&(const struct attr){5, {0}, 6, 4, 2, 0, 0, values},
	&(const struct attr){6, {0}, 7, 0, 0, 0, 0, (const void *)(13 | 1ul << 16 | 2ul << 32 | 1ul << 48)}};
const struct method x_ib_method_UVERBS_METHOD_X_MAKE = {7, 0, 6, (const void *)attrs, 0};
const struct method x_ib_method_UVERBS_METHOD_X_RING = {8, 0, 0, 0, 0};
static const struct method *const _object_methods_UVERBS_OBJECT_X12[] = {&x_ib_method_UVERBS_METHOD_X_MAKE,
	&x_ib_method_UVERBS_METHOD_X_RING};
const struct object x_object = {9, 0, 2, (const void *)_object_methods_UVERBS_OBJECT_X12};
const char info[] __attribute__((section(".modinfo"))) = "name=x\0vermagic=6.1.0-0-amd64 SMP";
`

// compile returns an object file of a C compiler, which lays out structures and relocations like the kernel's.
func compile(t testing.TB, source string) []byte {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil || runtime.GOARCH != "amd64" {
		t.Skip("needs gcc for amd64")
	}
	out := filepath.Join(t.TempDir(), "module.o")
	cmd := exec.Command(gcc, "-w", "-fno-pic", "-c", "-xc", "-", "-o", out)
	cmd.Stdin = strings.NewReader(source)
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, string(text))
	file, err := os.ReadFile(out)
	require.NoError(t, err)
	return file
}

func TestRead(t *testing.T) {
	attrs, kernel, err := Read(compile(t, source))
	require.NoError(t, err)
	assert.Equal(t, "6.1.0-0-amd64", kernel)
	of := func(a model.IoctlAttr) model.IoctlAttr {
		a.Module, a.Object, a.Method, a.ObjectID, a.MethodID = "x_ib", "UVERBS_OBJECT_X", "UVERBS_METHOD_X_MAKE", 9, 7
		return a
	}
	assert.Equal(t, []model.IoctlAttr{
		of(model.IoctlAttr{ID: 0, Kind: model.IoctlHandle, Mandatory: true, Target: 9, Access: model.IoctlDestroy}),
		of(model.IoctlAttr{ID: 1, Kind: model.IoctlOut, Max: 0xffff, Driver: true}),
		of(model.IoctlAttr{ID: 3, Kind: model.IoctlIn, Min: 4, Max: 16, Mandatory: true, ZeroTrailing: true, Copied: true}),
		of(model.IoctlAttr{ID: 4, Kind: model.IoctlRawFD}),
		of(model.IoctlAttr{ID: 5, Kind: model.IoctlEnum, Mandatory: true, Elements: []model.IoctlRange{{}, {Min: 4, Max: 8}}}),
		of(model.IoctlAttr{ID: 6, Kind: model.IoctlHandles, Target: 13, Min: 1, Max: 2, Access: model.IoctlWrite}),
		{Module: "x_ib", Object: "UVERBS_OBJECT_X", Method: "UVERBS_METHOD_X_RING", ObjectID: 9, MethodID: 8},
	}, attrs)
}

// TestReadRefused checks the errors for modules whose tables the reader does not understand.
func TestReadRefused(t *testing.T) {
	for name, c := range map[string]struct{ old, new, want string }{
		"other size":   {"unsigned short id; const void *type;", "unsigned short id; const void *type, *more;", "no table of 32 bytes points to it"},
		"no method":    {"x_ib_method_", "other_", "no symbol …_method_…"},
		"unknown flag": {"3, {0}, 1, 7,", "3, {0}, 1, 16,", "UVERBS_METHOD_X_MAKE: attribute 3: unknown flags 0x10"},
		"unknown kind": {"3, {0}, 1, 7,", "3, {0}, 9, 7,", "attribute 3: unknown kind 9"},
		"many methods": {"{9, 0, 2,", "{9, 0, 257,", "array of 257 pointers; at most 256 are expected"},
		"short array":  {"{9, 0, 2,", "{9, 0, 3,", "element 2 of its array has no relocation"},
		"no array":     {"(const void *)_object_methods_UVERBS_OBJECT_X12}", "0}", "_UVERBS_OBJECT_X12: no table of 32 bytes points to it"},
		"no values":    {"2, 0, 0, values", "2, 0, 0, 0", "the pointer to the elements of its enumeration has no relocation"},
		"other values": {"{1, 0, 8, 4}", "{2, 0, 8, 4}", "element 1 of its enumeration has kind out"},
	} {
		require.Contains(t, source, c.old, name)
		_, _, err := Read(compile(t, strings.ReplaceAll(source, c.old, c.new)))
		assert.ErrorContains(t, err, c.want, name)
	}
	_, _, err := Read([]byte("text"))
	assert.Error(t, err)
}

// TestReadDamaged checks that damaged files give errors or attributes, and no panic.
func TestReadDamaged(t *testing.T) {
	file := compile(t, source)
	r := rand.New(rand.NewSource(1))
	for n := range file {
		Read(file[:n])
	}
	for range 20_000 {
		damaged := append([]byte(nil), file...)
		for range 1 + r.Intn(3) {
			if at := r.Intn(len(damaged) - 8); r.Intn(2) == 0 {
				damaged[at] = byte(r.Int())
			} else {
				binary.LittleEndian.PutUint64(damaged[at:], r.Uint64()>>r.Intn(64))
			}
		}
		Read(damaged)
	}
}
