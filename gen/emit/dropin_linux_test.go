// SPDX-License-Identifier: BSD-2-Clause

package emit

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/rules"
)

// TestDropins compiles the printed C code and checks that the library exports each symbol with each of its versions.
func TestDropins(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler; run make deps")
	}
	function := func(result string, params ...string) *model.Func {
		f := &model.Func{Proto: model.Proto{Result: result}}
		for _, p := range params {
			f.Params = append(f.Params, model.Param{Type: p})
		}
		return f
	}
	files, err := Dropins([]*rules.Dropin{{SOName: "libtoy.so.1", Library: "libtoy", Source: "toy 1", Base: true,
		Versions: []model.Version{{Name: "TOY_1.0"}, {Name: "TOY_1.1", After: []string{"TOY_1.0"}},
			{Name: "TOY_PRIVATE_2"}},
		Symbols: []rules.DropinSymbol{
			{Name: "toy_open", Default: "TOY_1.1", Old: []string{"TOY_1.0"}, Fails: rules.ReturnsNull,
				Func: function("struct toy *", "const char *", "uint8_t", "enum toy_kind")},
			{Name: "toy_close", Default: "TOY_1.0", Fails: rules.ReturnsErrno, Func: function("int", "struct toy *")},
			{Name: "toy_reset", Default: "TOY_1.0", Fails: rules.ReturnsVoid, Func: function("void")},
			{Name: "toy_driver", Default: "TOY_PRIVATE_2", Also: []string{"TOY_1.1"}},
			{Name: "toy_gone", Old: []string{"TOY_1.0"}},
			{Name: "toy_flag", Default: "TOY_PRIVATE_2", Object: 3},
		}}}, &rules.DropinSlots{Source: "toy 1", Context: 16, Pointers: []int64{8}})
	require.NoError(t, err)
	dir := t.TempDir()
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o644))
	}
	library := filepath.Join(dir, "libtoy.so.1")
	out, err := exec.Command("cc", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-I../../dropin/library", "-o",
		library, "-Wl,-soname,libtoy.so.1", "-Wl,--version-script="+filepath.Join(dir, "libtoy.map"),
		filepath.Join(dir, "libtoy.c"), "../../dropin/library/call.c", "-pthread", "-ldl").CombinedOutput()
	require.NoError(t, err, "%s", out)
	f, err := elf.Open(library)
	require.NoError(t, err)
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	require.NoError(t, err)
	found := map[string]string{}
	for _, s := range symbols {
		if s.Section == elf.SHN_UNDEF || s.Section == elf.SHN_ABS {
			continue
		}
		kind := elf.ST_TYPE(s.Info).String()
		if s.VersionIndex.IsHidden() {
			kind += " old"
		}
		found[s.Name+"@"+s.Version] = kind
	}
	assert.Equal(t, map[string]string{
		"toy_open@TOY_1.1": "STT_FUNC", "toy_open@TOY_1.0": "STT_FUNC old", "toy_close@TOY_1.0": "STT_FUNC",
		"toy_reset@TOY_1.0": "STT_FUNC", "toy_driver@TOY_PRIVATE_2": "STT_FUNC", "toy_driver@TOY_1.1": "STT_FUNC old",
		"toy_gone@TOY_1.0": "STT_FUNC old", "toy_flag@TOY_PRIVATE_2": "STT_OBJECT",
		"goverbs_enter@GOVERBS_PRIVATE": "STT_FUNC", "goverbs_refuse@GOVERBS_PRIVATE": "STT_FUNC",
	}, found)
}

// TestDropinByValue checks that arguments passed by value are rejected, since they do not fit an integer.
func TestDropinByValue(t *testing.T) {
	_, err := Dropins([]*rules.Dropin{{SOName: "libtoy.so.1", Library: "libtoy", Symbols: []rules.DropinSymbol{
		{Name: "toy_put", Default: "TOY_1.0", Func: &model.Func{Proto: model.Proto{Result: "void",
			Params: []model.Param{{Type: "struct toy"}}}}}}}}, &rules.DropinSlots{})
	assert.ErrorContains(t, err, "libtoy.so.1: toy_put: struct toy is passed by value")
}
