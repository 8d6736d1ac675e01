// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// compileBTF compiles the headers of uapi into an object file with type information.
func compileBTF(t *testing.T, include string) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip(err)
	}
	var text strings.Builder
	for _, h := range headersOf(question(t, "uapi").Packages) {
		if _, err := os.Stat(filepath.Join(include, h)); err == nil {
			fmt.Fprintf(&text, "#include <%s>\n", h)
		}
	}
	path := filepath.Join(t.TempDir(), "types.o")
	cmd := exec.Command("gcc", "-std=gnu11", "-w", "-gbtf", "-c", "-fno-eliminate-unused-debug-types", "-o", path,
		"-isystem", include, "-x", "c", "-")
	cmd.Stdin = strings.NewReader(text.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("gcc does not write BTF: %s", out)
	}
	return path
}

// withoutLarge removes enumerators of at least 1 << 31, which gcc 12 omits, and one that differs between releases.
func withoutLarge(t *testing.T, lines []string) []string {
	t.Helper()
	x := newIndex(question(t).Primary.Of("linux")[0], runtime.GOARCH)
	return slices.DeleteFunc(lines, func(line string) bool {
		name, ok := strings.CutPrefix(line, "enumerator ")
		name, _, _ = strings.Cut(name, " ")
		moved := name == "BNXT_RE_CQ_TOGGLE_PAGE_SUPPORT" // from an enumeration that 6.12 lacks
		return ok && (moved || x.values[name].value.Uint64() >= 1<<31)
	})
}

// uapiHeaders returns the include directory of a pinned release of Linux.
func uapiHeaders(t *testing.T, release string) string {
	t.Helper()
	dir := filepath.Join(cacheDir, "linux-"+release, "include")
	if _, err := os.Stat(filepath.Join(dir, "rdma", "ib_user_verbs.h")); err != nil {
		t.Skipf("the headers of Linux %s are unavailable (%v); run make headers", release, err)
	}
	return dir
}

func askBTF(t *testing.T, files ...string) (*Answer, error) {
	t.Helper()
	q := question(t, "uapi")
	q.BTF, q.Only = files, Layouts
	return Ask(context.Background(), q)
}

// TestBTFAgreesWithCompiler: for the headers of every kernel, type information gives the same differences as the
// headers and the C compiler.
func TestBTFAgreesWithCompiler(t *testing.T) {
	for _, r := range question(t).Recorded.Of("linux") {
		t.Run(r.Name, func(t *testing.T) {
			include := uapiHeaders(t, r.Name)
			compiled := askHeadersOf(t, include, "uapi")
			a, err := askBTF(t, compileBTF(t, include))
			require.NoError(t, err)
			types := a.Headers[0]
			if r.Name == types.Primary {
				assert.Equal(t, []string{"enum ib_uverbs_device_cap_flags"}, types.NotChecked) // of 64 bits
			}
			equalLines(t, withoutLarge(t, layoutDifferences(t, compiled, types)),
				withoutLarge(t, layoutDifferences(t, types, types)))
		})
	}
}

// TestBTFFindsDrift: each change of a header is detected in type information, as it is by the C compiler.
func TestBTFFindsDrift(t *testing.T) {
	include := uapiHeaders(t, "7.2")
	for _, test := range []struct{ name, old, new, want string }{
		{"field added", "struct ib_uverbs_dealloc_pd {\n", "struct ib_uverbs_dealloc_pd {\n\t__u32 more;\n",
			"field ib_uverbs_dealloc_pd.pd_handle offset"},
		{"field renamed", "struct ib_uverbs_dealloc_pd {\n\t__u32 pd_handle;",
			"struct ib_uverbs_dealloc_pd {\n\t__u32 handle;", "field ib_uverbs_dealloc_pd.pd_handle declaration"},
		{"width of a type", "struct ib_uverbs_dealloc_pd {\n\t__u32 pd_handle;",
			"struct ib_uverbs_dealloc_pd {\n\t__u64 pd_handle;", "field ib_uverbs_dealloc_pd.pd_handle type"},
		{"bitfield", "struct ib_uverbs_dealloc_pd {\n\t__u32 pd_handle;",
			"struct ib_uverbs_dealloc_pd {\n\t__u32 pd_handle:24, top:8;", "field ib_uverbs_dealloc_pd.pd_handle type"},
		{"enumerator", "\tIB_USER_VERBS_CMD_QUERY_DEVICE,\n", "\tIB_USER_VERBS_CMD_QUERY_DEVICE = 77,\n",
			"enumerator IB_USER_VERBS_CMD_QUERY_DEVICE value"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "include")
			require.NoError(t, os.CopyFS(dir, os.DirFS(include)))
			name := filepath.Join(dir, "rdma", "ib_user_verbs.h")
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			require.Equal(t, 1, bytes.Count(text, []byte(test.old)))
			require.NoError(t, os.Chmod(name, 0o644))
			require.NoError(t, os.WriteFile(name, bytes.Replace(text, []byte(test.old), []byte(test.new), 1), 0o644))
			compiled := askHeadersOf(t, dir, "uapi")
			a, err := askBTF(t, compileBTF(t, dir))
			require.NoError(t, err)
			assert.Equal(t, Incompatible, a.Verdict)
			equalLines(t, withoutLarge(t, layoutDifferences(t, compiled, a.Headers[0])),
				withoutLarge(t, layoutDifferences(t, a.Headers[0], a.Headers[0])))
			assert.True(t, slices.ContainsFunc(a.Findings, func(f Finding) bool { return f.ID == test.want && !f.Compatible }),
				"%s: %v", test.want, a.Findings)
		})
	}
}

// TestBTFOfKernels: the kernels of the test guests agree with the Go packages. Their modules refer to the kernel's
// types.
func TestBTFOfKernels(t *testing.T) {
	for pattern, release := range map[string]string{"6.1-*": "6.1", "6.12-*": "6.12", "7-*": "7.2"} {
		t.Run(release, func(t *testing.T) {
			dirs, _ := filepath.Glob("../../conformance/vm/cache/" + pattern)
			if len(dirs) != 1 {
				t.Skip("no kernel; run make vm")
			}
			kernel := filepath.Join(t.TempDir(), "vmlinux")
			require.NoError(t, os.WriteFile(kernel, decompressKernel(t, filepath.Join(dirs[0], "vmlinuz")), 0o644))
			files := []string{kernel}
			for _, name := range []string{"ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm", "rdma_rxe"} {
				files = append(files, filepath.Join(dirs[0], "modules", name+".ko"))
			}
			a, err := askBTF(t, files...)
			require.NoError(t, err)
			h := a.Headers[0]
			assert.Equal(t, release, h.Release)
			assert.Greater(t, h.Report.Counts.Structs, 180)
			for _, d := range h.Differences {
				assert.True(t, d.Compatible, "%s", d)
			}
			if release == h.Primary {
				assert.Equal(t, Identical, h.Verdict)
			}
			assert.NoError(t, a.Require([]string{"uapi", "ib_uverbs_create_cq", "rdma_ucm_connect", "rxe_send_wr"}))
			assert.ErrorContains(t, a.Require([]string{"mlx5_ib_create_qp"}),
				"has no debug information of it; load its kernel module, such as ib_uverbs")
			_, err = askBTF(t, files[2])
			assert.ErrorContains(t, err, "the file belongs to a module and needs the kernel's types; name vmlinux before it")
			records, fields := agreesWithPahole(t, h, "--btf_base", kernel, "-F", "btf", files[2])
			assert.Greater(t, records, 100)
			assert.Greater(t, fields, 500)
		})
	}
}

// decompressKernel returns the ELF file in a compressed kernel image.
func decompressKernel(t *testing.T, path string) []byte {
	t.Helper()
	image, err := os.ReadFile(path)
	require.NoError(t, err)
	for _, c := range []struct{ magic, command string }{{"\xfd7zXZ\x00", "xz"}, {"\x28\xb5\x2f\xfd", "zstd"}} {
		for at := 0; ; at++ {
			i := bytes.Index(image[at:], []byte(c.magic))
			if i < 0 {
				break
			}
			at += i
			cmd := exec.Command(c.command, "-dc")
			cmd.Stdin = bytes.NewReader(image[at:])
			out, _ := cmd.Output() // bytes follow the compressed kernel
			if bytes.HasPrefix(out, []byte("\x7fELF")) {
				return out
			}
		}
	}
	t.Skip("no xz or zstd to decompress the kernel")
	return nil
}

// TestBTFOfRunningKernel reads the types of this machine's kernel.
func TestBTFOfRunningKernel(t *testing.T) {
	if _, err := os.Stat(KernelBTF); err != nil {
		t.Skip(err)
	}
	_, err := askBTF(t, KernelBTF)
	if err != nil {
		assert.ErrorContains(t, err, "none of its types")
	}
}

// blob is a small kernel's type information: struct ib_uverbs_dealloc_pd { unsigned int pd_handle; }.
func blob() []byte {
	types := []uint32{
		1, btfInt << 24, 4, 32, // 1: unsigned int
		14, btfStruct<<24 | 1, 4, 35, 1, 0, // 2
	}
	text := []byte("\x00unsigned int\x00ib_uverbs_dealloc_pd\x00pd_handle\x00")
	return join(types, text)
}

// bomb is a structure with two members of another untagged structure, which again has two such members, and so on.
func bomb() []byte {
	var types []uint32
	for i := range uint32(60) {
		name := uint32(0)
		if i == 0 {
			name = 1
		}
		types = append(types, name, btfStruct<<24|2, 8, 22, i+2, 0, 22, i+2, 0)
	}
	types = append(types, 0, btfStruct<<24, 8)
	return join(types, []byte("\x00ib_uverbs_dealloc_pd\x00pd_handle\x00"))
}

func join(types []uint32, text []byte) []byte {
	var b bytes.Buffer
	for _, v := range []any{uint16(btfMagic), uint8(1), uint8(0), uint32(24), uint32(0), uint32(4 * len(types)),
		uint32(4 * len(types)), uint32(len(text)), types, text} {
		binary.Write(&b, binary.LittleEndian, v)
	}
	return b.Bytes()
}

// TestBTFRefuses: an error about unreadable type information contains the reason.
func TestBTFRefuses(t *testing.T) {
	if slices.Contains(bigEndian, runtime.GOARCH) {
		t.Skip("the files are of a little-endian machine")
	}
	change := func(at int, value uint32) []byte {
		b := blob()
		binary.LittleEndian.PutUint32(b[at:], value)
		return b
	}
	swapped := blob()
	slices.Reverse(swapped[:2])
	for _, test := range []struct {
		data []byte
		want string
	}{
		{nil, "no type information"},
		{[]byte("\x1f\x8b compressed, and longer than a header"), "name an uncompressed file"},
		{[]byte("\x7fELF"), "EOF"},
		{swapped, "the byte order is not that of "},
		{change(12, 1<<31), "corrupt header"},
		{change(24, 1<<20), "corrupt reference to a name"},
		{change(24+4, 31<<24), "unknown kind 31 of type 1"},
		{change(24+16+4, btfStruct<<24|9), "the last type is incomplete"},
		{change(24+32, 7), "corrupt reference to type 7"},
		{change(24+32, 2), "nested more than"},
		{bomb(), "a type has more than"},
		{change(24+16+8, 1<<31), "exceed the limit"},
	} {
		path := filepath.Join(t.TempDir(), "btf")
		require.NoError(t, os.WriteFile(path, test.data, 0o644))
		_, err := askBTF(t, path)
		if assert.Error(t, err, test.want) {
			assert.ErrorContains(t, err, test.want)
			assert.ErrorContains(t, err, path)
		}
	}
	path := filepath.Join(t.TempDir(), "btf")
	require.NoError(t, os.WriteFile(path, blob(), 0o644))
	a, err := askBTF(t, path)
	require.NoError(t, err)
	assert.Equal(t, Counts{Structs: 1, Fields: 1}, a.Headers[0].Report.Counts)
	_, err = askBTF(t, filepath.Join(t.TempDir(), "none"))
	assert.ErrorContains(t, err, "CONFIG_DEBUG_INFO_BTF")
}

// FuzzBTF: no file makes the reader panic.
func FuzzBTF(f *testing.F) {
	f.Add(blob())
	want := map[string]bool{"struct ib_uverbs_dealloc_pd": true}
	f.Fuzz(func(t *testing.T, data []byte) {
		base, err := parseBTF(blob(), nil, "amd64")
		require.NoError(t, err)
		for _, base := range []*btfFile{nil, base} {
			read, err := parseBTF(data, base, "amd64")
			if err != nil {
				continue
			}
			found := &definitions{named: map[string][]*cType{}}
			if read.scan(want, found) != nil {
				continue
			}
			for _, all := range found.named {
				for _, c := range all {
					c.record(&walk{})
				}
			}
			for _, c := range found.untagged {
				c.enum()
			}
		}
	})
}
