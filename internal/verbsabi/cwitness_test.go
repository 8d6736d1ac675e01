// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
)

const probeInclude = "testdata/include"

// hostCompiler returns the machine's C compiler, or skips the test.
func hostCompiler(t *testing.T) Compiler {
	t.Helper()
	cc, err := FindCompiler(runtime.GOARCH)
	if errors.Is(err, ErrNoCompiler) {
		t.Skip(err)
	}
	require.NoError(t, err)
	return cc
}

// items returns the mismatches' items, such as "ibv_send_wr,wr.rdma.rkey,offset".
func items(r *Report) []string {
	var all []string
	for _, m := range r.Mismatches {
		all = append(all, m.Item.String())
	}
	return all
}

func TestCWitnessAgrees(t *testing.T) {
	for _, target := range probe().Targets {
		t.Run(target, func(t *testing.T) {
			cc, err := FindCompiler(target)
			if errors.Is(err, ErrNoCompiler) {
				t.Skip(err)
			}
			r, err := CWitness(context.Background(), cc, probeInclude, probe(), target)
			require.NoError(t, err)
			assert.Empty(t, r.Mismatches)
			assert.Equal(t, Counts{Structs: 15, Fields: 36, Enumerators: 6, Constants: 6, Prototypes: 4}, r.Counts)
			assert.Greater(t, r.Facts, 100)
		})
	}
}

// TestCWitnessFindsMutations: every mutation of the model is found, and nothing else is reported.
func TestCWitnessFindsMutations(t *testing.T) {
	record := func(r *model.Release, i int) *model.Record { return &r.Headers[0].Records[i] }
	rdma := func(r *model.Release) *model.Record { return record(r, 1).Fields[2].Record.Fields[0].Record }
	tests := []struct {
		name   string
		mutate func(r *model.Release)
		want   []string
		found  string // by the first mismatch
	}{
		{"size", func(r *model.Release) { record(r, 0).Size = model.Same(96) }, []string{"probe_plain,,size"}, "88"},
		{"alignment", func(r *model.Release) { record(r, 3).Align = model.Same(2) },
			[]string{"probe_packed,,alignment"}, "1"},
		{"offset through two unions", func(r *model.Release) { rdma(r).Fields[1].Offset = model.Same(12) },
			[]string{"probe_nested,wr.rdma.rkey,offset"}, "24"},
		{"offset in an unnamed union",
			func(r *model.Release) { record(r, 1).Fields[1].Record.Fields[1].Offset = model.Same(2) },
			[]string{"probe_nested,key,offset"}, "8"},
		{"offset in an array",
			func(r *model.Release) { record(r, 1).Fields[3].Record.Fields[1].Offset = model.Same(2) },
			[]string{"probe_nested,pair[0].b,offset"}, "36"},
		{"member size", func(r *model.Release) { record(r, 0).Fields[2].Size = model.Same(63) },
			[]string{"probe_plain,text,size"}, "64"},
		{"member type of the same size", func(r *model.Release) { record(r, 0).Fields[0].Type = "int64_t" },
			[]string{"probe_plain,id,type"}, "uint64_t *"},
		{"const", func(r *model.Release) { record(r, 0).Fields[1].Type = "char *" }, []string{"probe_plain,name,type"},
			"const char **"},
		{"array length in the type", func(r *model.Release) { record(r, 2).Fields[0].Type = "uint8_t[8]" },
			[]string{"probe_gid,raw,type"}, "uint8_t (*)[16]"},
		{"flexible array", func(r *model.Release) { record(r, 0).Fields[2].Type = "char[]" },
			[]string{"probe_plain,text,size"}, "char (*)[64]"},
		{"slot", func(r *model.Release) { record(r, 5).Fields[0].Func.Params[1].Type = "struct probe_plain *" },
			[]string{"probe_ops,start,type"}, "int (**)(struct probe_handle *, const struct probe_plain *)"},
		{"slot array", func(r *model.Release) { record(r, 5).Fields[1].Dims[0] = 3 },
			[]string{"probe_ops,reserved,type"}, ""},
		{"slot parameter that is a function",
			func(r *model.Release) { record(r, 5).Fields[2].Func.Params[0].Func.Result = "void" },
			[]string{"probe_ops,walk,type"}, "void (**)(int (*)(void *), ...)"},
		{"opaque", func(r *model.Release) { r.Headers[2].Records[0].Size = model.Same(56) },
			[]string{"pthread_mutex_t,,size"}, ""},
		{"support structure", func(r *model.Release) { r.Headers[1].Records[0].Fields[0].Type = "int" },
			[]string{"timespec,tv_sec,type"}, ""},
		{"enumerator", func(r *model.Release) { r.Headers[0].Enums[1].Enumerators[1].Value = "-2147483648" },
			[]string{"probe_flags,PROBE_HIGH,value", "-,PROBE_ALIAS,value"}, "2147483648"},
		{"negative enumerator",
			func(r *model.Release) { r.Headers[0].Enums[0].Enumerators[0].Value = "18446744073709551615" },
			[]string{"probe_sign,PROBE_UNKNOWN,value"}, "-1"},
		{"untagged enumerator", func(r *model.Release) { r.Headers[0].Enums[2].Enumerators[0].Value = "65" },
			[]string{"-,PROBE_NAME_MAX,value"}, "64"},
		{"enumerator that the model lacks",
			func(r *model.Release) { r.Headers[0].Enums[1].Enumerators = r.Headers[0].Enums[1].Enumerators[:1] },
			[]string{"probe_flags,,complete"}, ""},
		{"sign of an enumeration", func(r *model.Release) { r.Headers[0].Enums[0].Signed = false },
			[]string{"probe_sign,,signed"}, "1"},
		{"constant", func(r *model.Release) { *r.Headers[0].Macros[3].Value = "17179869185" },
			[]string{"-,PROBE_WIDE,value"}, "17179869184"},
		{"type of a constant", func(r *model.Release) { r.Headers[0].Macros[3].Type = "long" },
			[]string{"-,PROBE_WIDE,type"}, "long long unsigned int *"},
		{"pointer constant", func(r *model.Release) { *r.Headers[0].Macros[2].Value = "-2" },
			[]string{"-,PROBE_POINTER,value"}, "18446744073709551615"},
		{"target of an alias", func(r *model.Release) { r.Headers[0].Macros[0].Target = "probe_packed" },
			[]string{"-,probe_alias,target", "-,probe_alias,type"}, ""},
		{"missing macro", func(r *model.Release) { r.Headers[0].Macros[5].Name = "probe_print" },
			[]string{"-,probe_print,defined"}, ""},
		{"place of a bitfield", func(r *model.Release) { r.Headers[0].Records[7].Fields[2].Bits.First = model.Same(12) },
			[]string{"probe_bits,across,bits"}, "00f8030000000000"},
		{"result", func(r *model.Release) { r.Headers[0].Funcs[0].Result = "char *" },
			[]string{"probe_name,,prototype"}, "const char * (*)(enum probe_flags)"},
		{"parameter", func(r *model.Release) { r.Headers[0].Funcs[1].Params[0].Type = "void *" },
			[]string{"probe_call,,prototype"}, "int (*)(struct probe_handle *)"},
		{"variadic", func(r *model.Release) { r.Headers[0].Funcs[2].Variadic = false },
			[]string{"probe_print,,prototype"}, "int (*)(const char *, ...)"},
		{"inline", func(r *model.Release) { r.Headers[0].Funcs[3].Result = "long" },
			[]string{"probe_call_inline,,prototype"}, "int (*)(struct probe_handle *)"},
		{"function that the header lacks", func(r *model.Release) { r.Headers[0].Funcs[3].Name = "probe_missing" },
			[]string{"probe_missing,,prototype"}, ""},
	}
	cc := hostCompiler(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			mutant := probe()
			test.mutate(mutant)
			r, err := CWitness(context.Background(), cc, probeInclude, mutant, runtime.GOARCH)
			require.NoError(t, err)
			require.Equal(t, test.want, items(r), "mismatches: %v", r.Mismatches)
			clang, err := cc.isClang(context.Background())
			require.NoError(t, err)
			if test.found != "" && !clang { // which spells some types differently
				assert.Equal(t, test.found, r.Mismatches[0].Found)
			}
		})
	}
}

// TestEveryAssertionCanFail: with wrong expected values, every assertion fails, so none is trivially true.
func TestEveryAssertionCanFail(t *testing.T) {
	w, err := NewWitness(probe(), runtime.GOARCH)
	require.NoError(t, err)
	for i, c := range w.checks {
		switch {
		case c.value != "":
			before, after, ok := strings.Cut(c.code, c.value)
			require.True(t, ok)
			wrong := "((" + c.value + ") + 1)"
			w.checks[i].code = before + wrong + strings.ReplaceAll(after, c.value, wrong)
		case c.item.Fact == "size": // of a flexible array
			w.checks[i].code = strings.ReplaceAll(c.code, "((struct probe_flexible *)0)->items",
				"((struct probe_plain *)0)->text")
		case c.typed != "":
			w.checks[i].code = strings.Replace(c.code, "__typeof__("+c.typed+")", "struct probe_handle *", 1)
		case c.item.Fact == "prototype":
			w.checks[i].code = strings.Replace(c.code, "(*goverbs_", "*(*goverbs_", 1)
		case c.item.Fact == "complete":
			w.checks[i].code = regexp.MustCompile(`case \w+:`).ReplaceAllString(c.code, "")
		case c.item.Fact == "defined":
			w.checks[i].code = strings.Replace(c.code, "#ifndef", "#ifdef", 1)
		case c.item.Fact == "target":
			w.checks[i].code = strings.Replace(c.code, "== 0", "!= 0", 1)
		case c.item.Fact == "function":
			w.checks[i].code = strings.Replace(c.code, "(probe_call_inline)", "(probe_name)", 1)
		default:
			t.Fatalf("%s: no way to make it fail", c.item)
		}
	}
	r, err := w.Check(context.Background(), hostCompiler(t), probeInclude)
	require.NoError(t, err)
	red := map[string]bool{}
	for _, name := range items(r) {
		red[name] = true
	}
	for _, c := range w.checks {
		assert.True(t, red[c.item.String()], "%s passed with a wrong value", c.item)
	}
}

// TestCWitnessNeedsCompiler: if the compiler does not really compile the witness, the result is an error, never "0
// mismatches".
func TestCWitnessNeedsCompiler(t *testing.T) {
	cc := hostCompiler(t)
	check := func(cc Compiler, include string, r *model.Release, target string) error {
		_, err := CWitness(context.Background(), cc, include, r, target)
		return err
	}
	t.Run("a compiler that does nothing", func(t *testing.T) {
		name, err := exec.LookPath("true")
		require.NoError(t, err)
		assert.ErrorContains(t, check(Compiler{name}, probeInclude, probe(), runtime.GOARCH),
			"stopped early: no output")
	})
	t.Run("no compiler", func(t *testing.T) {
		assert.ErrorContains(t, check(Compiler{"goverbs-no-such-compiler"}, probeInclude, probe(), runtime.GOARCH),
			"use another C compiler")
		assert.ErrorIs(t, check(nil, probeInclude, probe(), runtime.GOARCH), ErrNoCompiler)
	})
	t.Run("a program that does not end", func(t *testing.T) {
		defer func(d time.Duration) { runTimeout = d }(runTimeout)
		runTimeout = 50 * time.Millisecond
		start := time.Now()
		err := check(Compiler{"sh", "-c", "exec sleep 60"}, probeInclude, probe(), runtime.GOARCH)
		assert.EqualError(t, err, "sh -c exec sleep 60: timed out after 50ms; use another C compiler")
		assert.Less(t, time.Since(start), 30*time.Second)
	})
	t.Run("a program with too much output", func(t *testing.T) {
		defer func(n int) { maxText = n }(maxText)
		maxText = 1 << 20
		noisy := Compiler{"sh", "-c", "while :; do echo no compiler; done"}
		assert.EqualError(t, check(noisy, probeInclude, probe(), runtime.GOARCH),
			"sh -c while :; do echo no compiler; done: output exceeds 1048576 bytes; use another C compiler")
	})
	t.Run("a compiler for another target", func(t *testing.T) {
		other := "riscv64"
		if runtime.GOARCH == other {
			other = "s390x"
		}
		assert.ErrorContains(t, check(cc, probeInclude, probe(), other), "does not compile for "+other)
	})
	t.Run("a target without a compiler", func(t *testing.T) {
		assert.ErrorContains(t, check(cc, probeInclude, probe(), "wasm"), "no known C compiler for target wasm")
	})
	t.Run("no headers", func(t *testing.T) {
		assert.ErrorContains(t, check(cc, t.TempDir(), probe(), runtime.GOARCH), "; install libibverbs-dev")
	})
	t.Run("a broken header", func(t *testing.T) {
		dir := t.TempDir()
		require.NoError(t, os.Mkdir(filepath.Join(dir, "infiniband"), 0o755))
		require.NoError(t,
			os.WriteFile(filepath.Join(dir, "infiniband/probe.h"), []byte("struct probe_plain {\n\tint\n};;}\n"),
				0o644))
		assert.ErrorContains(t, check(cc, dir, probe(), runtime.GOARCH), "probe.h:")
	})
	t.Run("a cancelled context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := CWitness(ctx, cc, probeInclude, probe(), runtime.GOARCH)
		assert.ErrorIs(t, err, context.Canceled)
	})
	t.Run("a model with an invalid type", func(t *testing.T) {
		r := probe()
		r.Headers[0].Records[0].Fields[0].Type = "int]"
		assert.ErrorContains(t, check(cc, probeInclude, r, runtime.GOARCH),
			`infiniband/probe.h: struct probe_plain: id: type "int]"`)
	})
}

func TestFindCompiler(t *testing.T) {
	t.Setenv("CC", "goverbs-no-such-compiler -m64")
	_, err := FindCompiler(runtime.GOARCH)
	assert.ErrorIs(t, err, ErrNoCompiler)
	assert.ErrorContains(t, err, "set CC to a C compiler, or unset it")
	t.Setenv("CC", "sh -c")
	cc, err := FindCompiler(runtime.GOARCH)
	require.NoError(t, err)
	assert.Equal(t, Compiler{"sh", "-c"}, cc)
	t.Setenv("CC", "")
	t.Setenv("PATH", t.TempDir())
	_, err = FindCompiler("arm64")
	assert.ErrorContains(t, err, "install gcc-aarch64-linux-gnu, or name one with --cc")
	_, err = FindCompiler("wasm")
	assert.ErrorIs(t, err, ErrNoCompiler)
}
